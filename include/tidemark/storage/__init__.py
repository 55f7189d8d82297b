"""Storage workers: processes that run ingestions and sinks all the time, told by a controller what to run.

How an object gets to run, and ends:

1. ``Controller.follow`` compares what the catalog wants (``find_desired``) with what it has told, and returns external
   commands (``commands``), which are appended to the log of commands (``order``, ``command_log``): an ``Outbox``
   repeats what may not have landed.
2. Every worker reads the log through a ``Cursor``, its own commands included, and ``take``s each row. An external
   command changes what the worker knows, and nothing else. On worker 0 alone it also returns questions to the
   companion, which lives as long as the worker and reads resume points off the main loop. Drops go through the
   companion too, so that they cannot overtake what was asked before about the same object.
3. ``Worker.handle_answer`` turns each answer into an internal command, which is appended to the same log.
4. Internal commands alone return ``StartDataflow`` and ``StopDataflow`` (``effects``), so that the same dataflows run
   everywhere, in the same order.
5. Each worker tells how far it has read the log, and how far its parts came there (``Worker.frontiers``): it decided
   every drop that it has read. ``Controller.hear`` merges that: the minimum of frontiers, each drop once.

A dataflow that fails calls ``Worker.fail``: all workers stop it, and worker 0 asks for fresh points. A process begins a
life with ``CommandLog.join``, reads the log, and gives the rows to ``Worker.replay``; ``history`` says what of them
counts. A new life of the controller ``begin``s with everything it wants; before its end marker nothing changes
(``reconciliation``).

Everything here is pure but ``command_log``: whoever runs a worker carries its effects out.
"""
