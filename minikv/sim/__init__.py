"""Memory without a model: what do ways of reserving KV memory make of a stream of requests?

From the bottom: `arena` is contiguous memory, `workload` says who asks for how much, `policy` and
`reservation` hand memory out, `simulate` lets time pass, `sharing` counts what forks save, `results` shows
what came out, and `paper` repeats the figures in `published`. Nothing here needs torch.
"""
