"""Probes: functions that do the thing itself and compare the answer with float64, each in a process of its own."""
