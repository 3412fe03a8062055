"""stub"""
from hotlap.kernels.lstm.scan import scan_layer
def why_not(device, dtype, hidden): return "the tensors are on cpu"
def lstm_cuda(*a): return scan_layer("cuda", *a)
