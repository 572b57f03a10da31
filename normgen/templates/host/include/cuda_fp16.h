// Empty: simt.h, which stands in front of every kernel text, supplies what this CUDA header declares.
