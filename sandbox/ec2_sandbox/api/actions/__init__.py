"""EC2's actions on launches, fleets, disks and instance status; ec2_actions.py puts them together."""
