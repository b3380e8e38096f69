"""Policy losses per response token: a file each, named as its function.

`rl_config.policy_loss` is the name of a file here, or your own function. It takes `ChosenTokens`
and returns the loss of each token, or `Terms`. Its second parameter, if any, is annotated with a
dataclass of its options: a field named as a key of `rl_config` has the value of that key, others
their value in `rl_config.policy_loss_options`.
"""
