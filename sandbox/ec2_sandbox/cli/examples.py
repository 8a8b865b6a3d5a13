"""The examples at the end of each subcommand's help. A test parses them."""

EXAMPLES = {
    "": """
ec2-sandbox start
eval "$(ec2-sandbox env)"   AWS tools in this shell then use it
ec2-sandbox log             the calls of EC2 and S3
ec2-sandbox stop
""",
    "setup": """
ec2-sandbox setup
ec2-sandbox setup > setup.log   keep what it prints
""",
    "start": """
ec2-sandbox start
ec2-sandbox --hosts none start         the API only
ec2-sandbox --region eu-west-1 start   in another region
""",
    "stop": """
ec2-sandbox stop
ec2-sandbox stop --yes   whatever is in it
""",
    "list": """
ec2-sandbox list
ec2-sandbox list --json   for scripts
""",
    "prune": """
ec2-sandbox prune
ec2-sandbox prune --yes   without a question
""",
    "status": """
ec2-sandbox status
ec2-sandbox status --json | jq .endpoint_url   for scripts
""",
    "shell": """
ec2-sandbox shell
ec2-sandbox shell -- aws ec2 describe-instances
""",
    "env": """
eval "$(ec2-sandbox env)"   for AWS tools in this shell
ec2-sandbox env > .env      for an editor
""",
    "install": """
ec2-sandbox install tmux htop
ec2-sandbox install redis-server
""",
    "fault": """
ec2-sandbox fault capacity zone=us-east-1a type='p4d.*'
ec2-sandbox fault s3-503 --count 3
ec2-sandbox fault kill instance=i-0123456789abcdef0
ec2-sandbox fault spot-notice instance=i-0123456789abcdef0
""",
    "faults": """
ec2-sandbox faults
ec2-sandbox faults --json   for scripts
""",
    "disarm": """
ec2-sandbox disarm all
ec2-sandbox disarm fault-1   ec2-sandbox faults has the ids
""",
    "log": """
ec2-sandbox log
ec2-sandbox log --json | jq .action   for scripts
""",
}


def render_examples(text: str) -> str:
    """Returns what the help of a command ends with. Pure."""
    return "\n  ".join(["\b\nExamples:", *text.strip().splitlines()])
