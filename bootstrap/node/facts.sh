# Prints what a node is and has, one `key=value` a line. Changes nothing. POSIX sh, run as the node's user.
if [ -d "$HOME/.cluster" ]; then
    # The set-up of a command that was killed may still be running, and holds this lock.
    exec 9<"$HOME/.cluster"
    flock --shared --timeout 300 9 || { echo "a set-up of this node has been running for long" >&2; exit 1; }
fi
python=__PYTHON__
if [ "$python" = auto ]; then
    python=$(PATH=/usr/bin:/usr/local/bin:$PATH command -v python3 || true)
fi
echo "machine=$(uname -m)"
echo "system=$(. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME")"
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
echo "cores=$(getconf _NPROCESSORS_ONLN)"
echo "python=$python"
[ -z "$python" ] || echo "python_version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
echo "disk_free_kib=$(df -Pk "$HOME" | awk 'NR == 2 {print $4}')"
echo "home=$HOME"
libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null)
for name in libgomp.so.1 libquadmath.so.0 libstdc++.so.6; do
    case "$libraries" in *"$name "*) ;; *) echo "missing=$name" ;; esac
done
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null | sed 's/^/gpu=/'
fi
cd "$HOME/.cluster" 2>/dev/null || exit 0
for path in files/*/*; do [ -f "$path" ] && echo "file=$(basename "$(dirname "$path")")"; done
for path in env/*/.complete; do [ -f "$path" ] && echo "env=$(basename "$(dirname "$path")")"; done
for path in tree/*/.complete; do [ -f "$path" ] && echo "tree=$(basename "$(dirname "$path")")"; done
[ ! -f ssh/id_ed25519.pub ] || echo "cluster_key=$(cat ssh/id_ed25519.pub)"
[ ! -f ssh/known_hosts ] || echo "known_hosts=$(sha256sum <ssh/known_hosts | cut -d' ' -f1)"
grep ' cluster-internal$' "$HOME/.ssh/authorized_keys" 2>/dev/null | sed 's/^/authorized=/'
exit 0
