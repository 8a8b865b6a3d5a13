"""EC2's actions on launches, fleets and disks; ec2_actions.py puts them together."""
