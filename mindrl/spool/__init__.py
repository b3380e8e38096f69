"""The shared folder of a train job and rollout jobs: records, weights, leases, signals."""
