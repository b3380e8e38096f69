"""The folder that joins a train job and rollout jobs: records, weights, leases, signals."""
