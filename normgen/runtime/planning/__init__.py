"""Which strategy and which schedules a call takes."""
