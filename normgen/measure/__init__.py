"""Time on a GPU: of prepared launches, of whole calls, of the fastest copy of the same bytes.

`timing` is the method, the same for everything that is timed; `clock` its way to a device through the
driver; `ceiling` what the memory allows; `plans` times a launch plan, `norms` a norm at given sizes.
"""
