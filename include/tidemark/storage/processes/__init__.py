"""Workers as processes: the main loop, the controller in worker 0, the companion, and who keeps them alive."""
