"""From MindSpeed-RL's files to the keys of this project."""
