"""Statistics of a segment and their application in one kernel, with the segment kept on chip."""
