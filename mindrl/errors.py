"""Every error that mindrl raises on purpose.

A message names the field or the place, the value found and what was needed,
so that the person who reads it can act without reading the code.
"""


class MindrlError(Exception):
    """Root of the tree; the command line prints its message without a traceback."""


class ConfigError(MindrlError):
    """A configuration that cannot run. Raised before any process is started."""


class InstallationError(MindrlError):
    """A package that a program needs is not installed."""


class DataError(MindrlError):
    """A data file that cannot be read, or a row that breaks the stated format."""


class ModelError(MindrlError):
    """A model folder that is missing, unreadable or of an unsupported family."""


class RewardError(MindrlError):
    """A reward function that cannot be found or breaks its contract."""


class EnvironmentFailedError(MindrlError):
    """Environments cannot be started, one has lost its server, or too many conversations failed."""


class NoSignalError(MindrlError):
    """The responses to each prompt of the data are equally good: nothing can be learned."""


class DeviceMemoryError(MindrlError):
    """The device does not have the memory that a region needs."""


class HostMemoryError(MindrlError):
    """The host does not have the memory for what has to leave the devices."""


class ResidueError(MindrlError):
    """Something that had to leave the device is still there."""


class LogprobGapError(MindrlError):
    """Rollout and training log-probs disagree beyond the configured limit."""


class SkippedUpdatesError(MindrlError):
    """A model has taken no update for several steps: its loss or gradient is not finite."""


class NonfiniteError(MindrlError):
    """A step met a NaN or Inf, and `megatron_training.on_nonfinite` ends the run for it."""


class OutputError(MindrlError):
    """An output folder that cannot be written, or has no space left."""


class CallbackError(MindrlError):
    """A callback of the user's raised; its exception is the cause."""


class CheckpointError(MindrlError):
    """A checkpoint that is damaged, incomplete or of another run."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint in which workers found a file that differs from its checksum."""


class SpoolError(MindrlError):
    """The folder that joins two jobs is that of others, or a file in it is damaged."""


class ClusterError(MindrlError):
    """The cluster has too few devices, or could not be reached."""


class WorkerDiedError(ClusterError):
    """A worker process ended, or hung, while the run still needed it."""


class AnswerError(WorkerDiedError):
    """A rollout replica answered with what no engine can have drawn; it is taken for lost."""


class InterruptedRunError(MindrlError):
    """The run was asked to stop, by Ctrl-C or SIGTERM."""


class StopRequestedError(InterruptedRunError):
    """The same, between two calls of the workers: they are free, and the model can be exported."""


class ReshardError(MindrlError):
    """The weights could not be moved from the training to the rollout layout."""
