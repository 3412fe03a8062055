"""What every other room stands on; imports nothing of ours from outside this folder."""
