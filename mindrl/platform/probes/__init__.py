"""What only the doctor queries of a machine: devices, limits, network and disks."""
