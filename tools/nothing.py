"""An empty application: ``spark-submit --packages`` resolves the jars before it starts one, and needs one to start."""
