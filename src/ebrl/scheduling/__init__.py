"""Who does what next. Pure: no clock, no randomness, no I/O, no tensors.

Events go in at ``Scheduler.handle`` and commands come out; nothing else changes anything.
"""
