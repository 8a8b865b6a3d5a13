"""The examples at the end of each command's help. A test parses them."""

from cluster.sandbox import rename
from ec2_sandbox.cli.examples import EXAMPLES as SANDBOX
from ec2_sandbox.cli.examples import render_examples as render

EXAMPLES = {
    "": """
cluster init                         write cluster.toml
cluster up                           launch the nodes
cluster train --kv-store dist_sync   train
cluster down                         delete everything
""",
    "init": """
cluster init                       for the project in this folder
cluster init --template cifar10    an example that trains on the sandbox
cluster init --cloud aws           on EC2
cluster -c all.toml init --full    all keys, with their defaults
""",
    "config": """
cluster config check
cluster config schema > cluster.schema.json
""",
    "config check": """
cluster config check
cluster -c big.toml config check --json   another file, for scripts
""",
    "config schema": """
cluster config schema > cluster.schema.json
cluster config schema | jq '.["$defs"].TrainConfig'
""",
    "iam-policy": """
cluster iam-policy > policy.json    this cluster
cluster iam-policy --all-clusters   all of the region
""",
    "oracle": """
cluster oracle                           every GPU
cluster oracle g5.xlarge                 one instance type
cluster oracle p4d --framework pytorch   PyTorch's wheels for a family
""",
    "completion": """
eval "$(cluster completion bash)"   in ~/.bashrc
eval "$(cluster completion zsh)"    in ~/.zshrc
cluster completion fish | source    in ~/.config/fish/config.fish
""",
    "up": """
cluster up --dry-run         findings, plan and price
cluster up                   launch, or complete what is missing
cluster up --nodes 4 --yes   four nodes, without a question
cluster up -H hosts.txt      the hosts in a file, with cloud = "hosts"
""",
    "image": """
cluster image bake   then set ami = "baked"
cluster image ls
""",
    "image bake": """
cluster image bake --yes
cluster image bake --name mnist-1
""",
    "image ls": """
cluster image ls
cluster image ls --json   for scripts
""",
    "image rm": """
cluster image rm mnist-1
cluster image rm ami-0123456789abcdef0 --yes
""",
    "status": """
cluster status
cluster status --wide               all columns
cluster status --json | jq .state   for scripts
""",
    "cost": """
cluster cost
cluster cost --json   for scripts
""",
    "list": """
cluster list
cluster list --json   for scripts
""",
    "verify": """
cluster verify
cluster verify --deep                 also measures, and names slow nodes
cluster verify --json > verify.json   for scripts
""",
    "resize": """
cluster resize 4
cluster resize 4 --dry-run   only the plan
cluster resize 0             no nodes; what costs nothing stays
""",
    "stop": """
cluster stop               the running job
cluster stop train_mnist   the newest job of this name
cluster stop --nodes       the nodes; cluster start continues
""",
    "start": """
cluster start         after cluster stop --nodes
cluster start --yes   without a question
""",
    "lease": """
cluster lease               show it
cluster lease +4h           four hours more
cluster lease --idle 30m    end after 30 minutes without use
cluster lease --budget 50   end when $50 are spent
cluster lease --none        no limit
""",
    "adopt": """
cluster adopt                       every instance that qualifies
cluster adopt i-0123456789abcdef0   one of them
""",
    "allow": """
cluster allow               after your address has changed
cluster -c big.toml allow   for the cluster of another file
""",
    "down": """
cluster down
cluster down --yes                   without a question
cluster down --json > receipt.json   keep the receipt
""",
    "train": """
cluster train                             cluster.toml's script
cluster train my.py --epochs 1            your script with its arguments
cluster train -- --num-epochs 1           the same, more arguments
cluster train -- python -m my.job         any command, word for word
cluster train -n 4 --kv-store dist_sync   with four workers
cluster train --detach --name night       return while it runs
""",
    "run": """
cluster run --dry-run                    plan, price and estimate
cluster run my.py --epochs 1             the cluster stays
cluster run --down my.py                 delete the cluster afterwards
cluster run --down --budget 20 --yes     at most $20, without a question
cluster run --down -- python -m my.job   any command, word for word
""",
    "jobs": """
cluster jobs
cluster jobs train_mnist              the newest job of this name
cluster jobs 20261127-184133 --json   the job whose id begins so
cluster jobs train_mnist --metrics    speed, loss, accuracy ...
""",
    "logs": """
cluster logs -f                        follow the newest job
cluster logs --rank 1 --tail 50        the last lines of a rank
cluster logs train_mnist --since 10m   of the newest job of this name
cluster logs --role server --plain     of the parameter servers
""",
    "report": """
cluster report                     the newest job
cluster report train_mnist --open  the newest job of this name, in a browser
cluster report 20261121 20261122   two jobs, side by side
cluster report --json | jq .       only the numbers
""",
    "capsule": """
cluster capsule                            the newest job
cluster capsule train_mnist -o a.capsule   the newest job of this name
""",
    "replay": """
cluster replay a.capsule --dry-run   what differs from then
cluster replay a.capsule             run it again
""",
    "debug": """
cluster debug                     the newest job
cluster debug -o problem.tar.gz   another file
""",
    "watch": """
cluster watch               the newest job
cluster watch train_mnist   the newest job of this name
cluster watch --web         its report, live in a browser
""",
    "stacks": """
cluster stacks                     of the job that runs
cluster stacks --rank 5            all threads of a rank
cluster stacks --rank 5 --native   with the frames of C
""",
    "results": """
cluster results                    of the newest job, to results/ID/
cluster results train_mnist out/   of the newest job of this name
cluster results 20261127-184133    of the job whose id begins so
""",
    "bench": """
cluster bench
cluster bench --kv-store dist_async   another type of MXNet's kv-store
cluster bench --json                  for scripts
""",
    "exec": """
cluster exec -- nvidia-smi                     on all nodes
cluster exec --node node-1 -- df -h /          on one
cluster exec 'ps aux | grep python'            a line for the shell there
""",
    "ssh": """
cluster ssh                               a shell on the head
cluster ssh node-1 'cd out; ls | wc -l'   a line for the shell there
""",
    "notebook": """
cluster notebook --open      JupyterLab on the head, in the browser
cluster notebook node-1      on another node
cluster notebook --stop      ends the one on the head
""",
    "forward": """
cluster forward 6006                TensorBoard on the head, at 6006 here
cluster forward 8081:8080 node-1    its port 8080, at 8081 here
""",
    "cp": """
cluster cp node-0:model.params .
cluster cp settings.json data/ node-1:/tmp/
""",
    "ssh-config": """
cluster ssh-config > ~/.ssh/cluster.conf
rsync -e "ssh -F ~/.ssh/cluster.conf" -a demo-node-0:results/ .
""",
    "data": """
cluster data fetch mnist mnist/   download a public dataset
cluster data put mnist/ s3://bucket/mnist/ --create-bucket
""",
    "data put": """
cluster data put mnist/ s3://bucket/mnist/ --create-bucket
cluster data put 'shards/*.rec' s3://bucket/train/
cluster data put mnist/ s3://bucket/mnist/ --delete --dry-run
""",
    "data get": """
cluster data get s3://bucket/mnist/ mnist/
cluster data get 's3://bucket/models/*.params' .
""",
    "data ls": """
cluster data ls                          the buckets
cluster data ls s3://bucket/mnist/       a folder
cluster data ls 's3://bucket/**/*.rec'   what matches
""",
    "data rm": """
cluster data rm s3://bucket/mnist/train.rec   an object
cluster data rm -r s3://bucket/mnist/         a folder
""",
    "data pack": """
cluster data pack photos/ packed/ --resize 256 --quality 95
cluster data pack photos/ s3://bucket/photos/ --shard-size 256MiB
cluster data pack train.lst packed/ --root photos/ --label-width 4
""",
    "data split": """
cluster data split train.rec shards/ --shards 16
cluster data split s3://b/train.rec s3://b/shards/ --shard-size 64MiB
""",
    "data info": """
cluster data info 's3://bucket/train/*.rec' --workers 4
cluster data info train.rec --json   for scripts
""",
    "data fetch": """
cluster data fetch mnist mnist/
cluster data fetch cifar10 cifar10/ --shards 8
""",
    "data demo": """
cluster data demo digits/                      write them here
cluster data put digits/ s3://bucket/digits/   for a job
""",
    **{f"sandbox {name}".rstrip(): rename(text) for name, text in SANDBOX.items()},
    "sandbox": """
cluster sandbox list                         the sandboxes of all folders
cluster sandbox log                          the calls of EC2 and S3
cluster sandbox fault kill instance=node-1   rehearse a lost node
cluster sandbox stop
""",
    "sandbox start": """
cluster sandbox start                 of this folder
cluster -c other.toml sandbox start   with another file's settings
""",
    "sandbox fault": """
cluster sandbox fault capacity zone=us-east-1a type='p4d.*'
cluster sandbox fault s3-503 --count 3
cluster sandbox fault kill instance=node-1
cluster sandbox fault partition a=node-0 b=node-1
""",
}


def render_examples(command: str) -> str:
    """Returns what the help of a command ends with. command: "up", "data put", or "" for `cluster` itself. Pure."""
    return render(EXAMPLES[command])
