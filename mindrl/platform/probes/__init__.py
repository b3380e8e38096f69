"""What only the doctor asks of a machine: its devices, its limits, its network, its disks."""
