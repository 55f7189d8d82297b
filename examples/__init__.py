"""Declarations and data preparation that the demo uses, and the demo itself."""
