# Shared by the demos, in a folder with a cluster.toml. $cluster: the command.

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() {
    printf '$ %s\n' "$*"
    "$@"
}

begin() {
    if ! grep -Eq '^cloud *= *"sandbox"' cluster.toml; then
        echo "the demo runs only with cloud = \"sandbox\" in cluster.toml" >&2
        exit 2
    fi
    if $cluster sandbox status | grep -q '^running'; then
        echo "this folder already has a running sandbox; first: $cluster sandbox stop" >&2
        exit 1
    fi
    started=$SECONDS
    trap 'code=$?; [ $code = 0 ] || { say "the demo failed with exit code $code; removing the sandbox"; $cluster sandbox stop --yes; }' EXIT
    say "1. The sandbox: EC2 and S3 on this machine"
    run $cluster sandbox start
    say "2. Two nodes, ready to train"
    run $cluster up
}

end() {
    say "5. What runs now"
    run $cluster status
    say "6. Everything gone, with a receipt"
    run $cluster down --yes
    run $cluster sandbox stop --yes
    say "The demo is done, in $((SECONDS - started)) s; nothing is left running; the trained model is in $1"
}
