"""Comparing: one experiment in several configurations, one verdict.

The rooms, in the order data flows through them:

- ``command``: what is asked
- ``runner``: starts the workers, shows progress, collects
- ``worker``: the runs of one configuration, in a process of its own
- ``training``, ``depth``: the trajectory, and one step looked into
- ``pairs``, ``verdict``: do two runs agree, and by how much
"""
