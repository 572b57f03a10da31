"""Specs that only the modules need: norms along an axis that is not the last, and running statistics."""

from __future__ import annotations

SOFTMAX = """
norm softmax_across "Softmax over the second axis (Bridle, 1990)."

input  x[B, D, ...]

let    e = exp(x - stop(max[D](x)))
save output y[B, D, ...] = e / sum[D](e)
"""

LOG_SOFTMAX = """
norm log_softmax_across "Logarithm of the softmax over the second axis, without overflow (Bridle, 1990)."

input  x[B, D, ...]

save   top[B, ...]   = stop(max[D](x))
save   total[B, ...] = sum[D](exp(x - top))
output y[B, D, ...] = x - top - log(total)
"""

INSTANCE_NORM = """
norm instancenorm_running "Instance normalization with running statistics (arXiv:1607.08022)."

attr   momentum = 0.1          "share of the new batch in the running statistics"
attr   eps = 1e-5              "added to the variance"

input  x[B, C, ...]
param  w[C] = 1                "gain"
param  b[C] = 0                "bias"
state  running_mean[C] = 0     "moving average of the means, over the samples too"
state  running_var[C]  = 1     "moving average of the corrected variances"

save   mu[B, C]   = mean[...](x)
let    var[B, C]  = mean[...]((x - mu)^2)
save   rstd[B, C] = rsqrt(var + eps)
output y[B, C, ...] = (x - mu) * rstd * w + b

let    unbiased = var * size[...] / max(size[...] - 1, 1)
update running_mean = lerp(running_mean, mean[B](mu), momentum)
update running_var  = lerp(running_var, mean[B](unbiased), momentum)
"""
