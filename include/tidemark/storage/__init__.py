"""Storage workers: processes that run ingestions and sinks all the time, told by a controller what to run.

How an object gets to run, and ends:

1. ``controller.follow`` compares what the catalog wants (``find_desired``) with what it has told, and returns external
   commands (``commands``), which every worker gets in the same order; ``history`` keeps them, reduced, for workers that
   connect later.
2. ``Worker.handle_external`` changes what the worker knows, and nothing else. On worker 0 alone it also returns
   questions to the companion: a thread with a queue, which lives as long as the worker and reads resume points off the
   main loop. Drops go through that queue too, so that they cannot overtake what was asked before.
3. ``Worker.handle_answer`` turns each answer into an internal command, to be appended to the log of commands
   (``order``, ``command_log``): an ``Outbox`` repeats what may not have landed.
4. Every worker reads the log through a ``Cursor``, its own commands included. ``Worker.handle_internal`` alone returns
   ``StartDataflow`` and ``StopDataflow`` (``effects``), so that the same dataflows run everywhere, in the same order.
5. ``Worker.report`` tells how far this worker's parts came, and acknowledges drops when they are decided;
   ``controller.receive`` merges the reports of all workers: the minimum of frontiers, each drop once.

A dataflow that fails calls ``Worker.fail``: all workers stop it, and worker 0 asks for fresh points. A process begins a
life with ``CommandLog.join``, reads the log, and gives the rows to ``Worker.replay``; then it ``connect``s to a
controller, whose commands change nothing before its end marker (``reconciliation``).

Everything here is pure but ``command_log``: whoever runs a worker carries its effects out.
"""
