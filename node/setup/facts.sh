# Prints the facts about a node, one `key=value` a line. POSIX sh, run as the node's user.
# A second run starts only flock: facts about the image are cached in ~/.cluster/known until the next
# boot, or until anything changes in the folders that they come from.
umask 077
cluster=$HOME/.cluster
[ -d "$cluster" ] || mkdir -p "$cluster" || exit 1
# The set-up of a command that was killed may still be running, and holds this lock.
exec 9<"$cluster"
flock --shared --timeout 300 9 || { echo "another set-up of this node is still running" >&2; exit 1; }

places="/usr/bin /usr/local/bin /opt/conda/bin $HOME/miniconda3/bin /opt/python/bin"
cuda="/usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /opt/conda/lib /opt/conda/pkgs/cudatoolkit-*/lib
/opt/conda/pkgs/cudnn-*/lib $HOME/miniconda3/lib $HOME/miniconda3/pkgs/cudatoolkit-*/lib"
# Where Deep Learning AMIs have PyTorch.
frameworks="/opt/pytorch/bin/python3 /opt/conda/envs/*/bin/python3 $HOME/miniconda3/envs/*/bin/python3"
watched="/opt/conda/envs $HOME/miniconda3/envs /etc/ld.so.cache /etc/os-release /usr/local /opt /opt/conda/lib
/opt/conda/pkgs /dev/kfd /proc/driver/nvidia /usr/lib/x86_64-linux-gnu /usr/lib64"
for place in /usr /usr/local /opt/pytorch /opt/conda /opt/conda/envs/* \
    "$HOME/.local" "$HOME/miniconda3" "$HOME"/miniconda3/envs/*; do
    watched="$watched $place/lib/python3*/site-packages $place/lib/python3*/dist-packages"
done

look() {
    echo "machine=$(uname -m)"
    PRETTY_NAME=
    [ ! -r /etc/os-release ] || . /etc/os-release
    echo "system=$PRETTY_NAME"
    echo "kernel=$(uname -r)"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
    echo "glibc=${glibc#* }"
    look_for_pythons
    look_for_libraries
    look_for_gpus
}

# A Python's version, then the frameworks that it finds, without importing them: name, version, CUDA, NumPy.
about_python='
import os, re, sys, zlib, hashlib
print("%d.%d" % sys.version_info[:2])
def version_of(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:
        return "-"
def tell(name, file):
    from importlib.util import find_spec
    spec = find_spec(name)
    if spec is None or not spec.origin:
        return
    with open(os.path.join(os.path.dirname(spec.origin), file)) as stream:
        said = dict(re.findall(r"^(__version__|cuda)\b[^=\n]*= *[\"\x27]([^\"\x27\s]+)", stream.read(), re.M))
    print(name, said["__version__"], said.get("cuda", "-"), version_of("numpy"))
for name, file in (("torch", "version.py"), ("mxnet", "libinfo.py")):
    try:
        tell(name, file)
    except Exception:
        pass
'

# $1: the key of its version, or "" to tell only of its frameworks
tell_python() {
    said=$("$2" -c "$about_python" 2>/dev/null) || return 0
    version=${said%%"$newline"*}
    [ -z "$1" ] || echo "$1=$version $2"
    case "$said" in *"$newline"*) ;; *) return 0 ;; esac
    echo "${said#*"$newline"}" | while read -r line; do echo "has=$line $version $2"; done
}

look_for_pythons() {
    case "$setting" in /*) tell_python configured "$setting" ;; esac
    own=$(PATH=/usr/bin:/usr/local/bin:$PATH command -v python3)
    [ -z "$own" ] || tell_python python "$own"
    for place in $places; do
        for name in python3.11 python3.10 python3.9 python3.8 python3.12 python3.13 python3.14 python3; do
            [ "$place/$name" = "$own" ] || [ ! -x "$place/$name" ] || tell_python python "$place/$name"
        done
    done
    for python in $frameworks; do
        [ ! -x "$python" ] || tell_python "" "$python"
    done
}

look_for_libraries() {
    # Each name is between spaces, so that `case` finds whole names.
    known=" $(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | while read -r name kind rest; do
        case "$kind" in *x86-64* | *AArch64*) echo "$name" ;; esac
    done | tr '\n' ' ') "
    for name in libgomp.so.1 libquadmath.so.0 libstdc++.so.6; do
        case "$known" in *" $name "*) ;; *) echo "missing=$name" ;; esac
    done
    for name in $cuda_libraries; do
        case "$known" in *" $name "*) echo "library=$name" ;; esac
    done
    for place in $cuda; do
        found=
        for name in $cuda_libraries; do
            [ ! -e "$place/$name" ] || found="$found $name"
        done
        [ -z "$found" ] || echo "cuda=$place$found"
    done
}

look_for_gpus() {
    for device in /sys/bus/pci/devices/*; do
        vendor= class=
        { read -r vendor <"$device/vendor" && read -r class <"$device/class"; } 2>/dev/null || continue
        case "$vendor $class" in "0x10de 0x03"*) echo "display=NVIDIA" ;; esac
    done
    command -v nvidia-smi >/dev/null || return 0
    # Drivers before 510 do not report the compute capability.
    for query in compute_cap,driver_version,name driver_version,name; do
        lines=$(nvidia-smi --query-gpu=$query --format=csv,noheader 2>/dev/null) || continue
        [ $query = driver_version,name ] && before='gpu=, ' || before='gpu='
        echo "$lines" | while read -r line; do echo "$before$line"; done
        return 0
    done
}

is_fresh() {
    [ -f "$cluster/known" ] || return 1
    # shellcheck disable=SC2086 # the words are paths
    for path in "$setting" "${setting%/bin/*}"/lib/python3*/site-packages $places $watched $cuda; do
        [ ! "$path" -nt "$cluster/known" ] || return 1
    done
    { read -r kept; } <"$cluster/known"
    [ "$kept" = "$stamp" ]
}

newline='
'
setting=__PYTHON__
cuda_libraries=__LIBRARIES__
boot=
[ ! -r /proc/sys/kernel/random/boot_id ] || read -r boot </proc/sys/kernel/random/boot_id
# Hosts may share this folder.
read -r host </proc/sys/kernel/hostname
stamp="stamp=__VERSION__ $boot $host $setting"
if is_fresh; then
    lines=
    while read -r line; do lines="$lines$line
"; done <"$cluster/known"
    printf %s "$lines"
else
    found=$(look)
    echo "$found"
    case "$found" in
    *gpu=*) is_whole=true ;;
    *display=NVIDIA*) is_whole=false ;; # its driver may only be late
    *) is_whole=true ;;
    esac
    # The old time makes changes during the look newer than the cache. A full disk caches nothing.
    { $is_whole && printf '%s\n' "$stamp" "$found" >"$cluster/known.$$" &&
        touch -d '-2 seconds' "$cluster/known.$$" && mv "$cluster/known.$$" "$cluster/known"; } 2>/dev/null ||
        rm -f "$cluster/known" "$cluster/known.$$"
fi
# The kernel's list, 0-3,5: reading /proc/cpuinfo line by line is slow with many of them.
online=
[ ! -r /sys/devices/system/cpu/online ] || read -r online </sys/devices/system/cpu/online
cores=0
IFS=,
for range in $online; do
    cores=$((cores + ${range#*-} - ${range%-*} + 1))
done
unset IFS
[ "$cores" -gt 0 ] || cores=$(getconf _NPROCESSORS_ONLN)
echo "cores=$cores"
echo "home=$HOME"
cd "$cluster" || exit 1
tell_complete() {
    # Printed at once: a shell writes each `echo` separately.
    lines=
    for path in $2; do
        [ ! -f "$path" ] || { path=${path#*/}; lines=$lines$1=${path%%/*}$newline; }
    done
    printf %s "$lines"
}
tell_complete file 'files/*/*'
tell_complete env 'env/*/.complete'
newest=
for path in env/*/.complete; do
    [ ! -f "$path" ] || { [ -n "$newest" ] && [ "$newest" -nt "$path" ]; } || newest=$path
done
[ -z "$newest" ] || { path=${newest#*/}; echo "newest_env=${path%%/*}"; }
for path in runtime/*/.complete; do
    # Without the Python that it links to, it is not complete.
    [ ! -f "$path" ] || [ ! -x "${path%/*}/bin/python" ] || { path=${path#*/}; echo "runtime=${path%%/*}"; }
done
tell_complete tree 'tree/*/.complete'
tell_complete pythons 'python/*/.complete'
[ ! -d setup/baked ] || mv -T setup/baked "setup/$host" 2>/dev/null  # of the image (scrub.sh)
for path in "setup/$host"/*.done; do
    [ ! -f "$path" ] || { path=${path##*/}; echo "setup=${path%.done}"; }
done
for path in env/*/.unresolved; do
    [ -f "$path" ] || continue
    env=${path#*/}
    while read -r line; do echo "unresolved=${env%%/*} $line"; done <"$path"
done
[ ! -f ssh/id_ed25519.pub ] || { read -r line <ssh/id_ed25519.pub; echo "cluster_key=$line"; }
[ ! -f ssh/known_hosts ] || while read -r line; do echo "known_host=$line"; done <ssh/known_hosts
[ ! -f "$HOME/.ssh/authorized_keys" ] || while read -r line; do
    case "$line" in *" cluster-internal") echo "authorized=$line" ;; esac
done <"$HOME/.ssh/authorized_keys"
# Volumes, as mount_volumes.py notes them; the folder exists since its first disk.
if [ -e __NOTES__ ] || [ -d __DISKS__ ]; then
    noted='{}'
    { read -r noted; } 2>/dev/null <__NOTES__
    if [ "$noted" != '{}' ] || grep -q " "__DISKS__/ /proc/self/mounts; then echo "volumes=mounted"; fi
fi
