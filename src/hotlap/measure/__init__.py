"""How a workload is run to be measured: arms, steps, fresh processes, the numeric gate."""
