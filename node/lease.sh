#!/bin/sh
# Ends this node at the end of its cluster's lease. The user data starts it at each boot, as root.
#
#   lease.sh boot LEASE CLUSTER   starts `keep` in the background, and saves a copy for a boot without user data
#   lease.sh set LEASE            uses another lease; of two, the one that was set later counts. Prints as `show`
#   lease.sh show                 prints a line of JSON: {"lease", "idle_s", "why", "saved"}
#   lease.sh idle                 prints for how many seconds this node has been idle; the head asks the other nodes
#   lease.sh end                  ends the node, unless it is in use; the head says so when the cluster has been idle
#
# A lease is a line of words, provision/lease/terms.py. The deadline needs no network, credentials or space on the disk.
# Idle time is that of the cluster: the head asks the other nodes, by ssh. A node that no head asks decides by itself.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
run=/run/cluster            # in memory, until the next boot
saved=/var/lib/cluster-lease
metadata=http://169.254.169.254/latest
tag_every_s=60 warn_s=600 boot_s=20 ssh_s=15
busy_percent=25             # of a core: the services of an idle node use less than a tenth of it
busy_gpu_percent=5

now() { date +%s; }
say() { echo "$(date -u +%FT%TZ) $*" >>$run/lease.log; }

# Prints the last line of stdin that is a lease and was set last.
choose() {
    grep -xE 'set=[0-9]{4}-[0-9TZ:-]{15}( [a-z]+=[0-9A-Za-z.:-]+)+' | sort | tail -n 1
}

# The value of a word of the lease, such as: word idle
word() {
    for pair in $lease; do
        if [ "${pair%%=*}" = "$1" ]; then echo "${pair#*=}"; fi
    done
}

# Uses a lease if it is newer. A disk that is full keeps none, and the tag counts after a reboot.
offer() {
    newest=$({ echo "$1"; cat $run/lease; } 2>/dev/null | choose)
    [ "$newest" != "$(cat $run/lease 2>/dev/null)" ] || return 0
    echo "$newest" >$run/lease.new && mv $run/lease.new $run/lease
    rm -f $run/warned $run/unsaved
    { mkdir -p $saved && echo "$newest" >$saved/new && mv $saved/new $saved/lease; } 2>/dev/null || : >$run/unsaved
}

# Offers the lease in the instance's tag. Fails without a metadata service.
read_tag() {
    token=$(curl -sf -m 3 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $metadata/api/token) || return 1
    tag=$(curl -sf -m 3 -H "X-aws-ec2-metadata-token: $token" $metadata/meta-data/tags/instance/cluster:lease)
    offer "$tag"
}

# -- use of this node --------------------------------------------------------------------------------------------------

homes() { awk -F: '$3 == 0 || ($3 >= 1000 && $3 <= 60000) { print $6 }' /etc/passwd | sort -u; }

# The processes that carry out a question, or are above a job's agent: their ssh sessions are no logins.
find_ours() {
    for parent in $$ $(grep -lszx agent /proc/[0-9]*/cmdline | sed 's|.*proc/\([0-9]*\)/.*|\1|'); do
        while [ "${parent:-0}" -gt 1 ]; do
            echo "$parent"
            parent=$(sed 's/.*) //' "/proc/$parent/stat" 2>/dev/null | cut -d ' ' -f 2)
        done
    done | tr '\n' ' '
}

# A kernel that waits for data is busy, too. The request does not count as activity for Jupyter.
has_busy_kernel() {
    for file in $(for home in $(homes); do ls "$home"/.cluster/notebook/run/*/jpserver-*.json; done 2>/dev/null); do
        port=$(sed -n 's/^ *"port": \([0-9]*\).*/\1/p' "$file")
        sed -n 's/^ *"token": "\([A-Za-z0-9_-]*\)".*/header = "Authorization: token \1"/p' "$file" |
            curl -sf -m 3 -K - "http://127.0.0.1:$port/api/kernels?no_track_activity=1" |
            grep -q '"execution_state": *"busy"' && return
    done
    return 1
}

# Prints why this node is in use.
find_use() {
    ours=" $(find_ours)"
    if grep -qszx supervise /proc/[0-9]*/cmdline; then  # a job that waits for nodes does not count
        for home in $(homes); do
            job=$(grep -lsE '"state": ?"(queued|pending|starting|running|ending)"' "$home"/.cluster/jobs/*/record.json |
                xargs -r grep -LE '"beside": ?true')  # a notebook counts while it computes
            [ -z "$job" ] || { job=$(dirname "${job%%.json*}"); echo "job ${job##*/} has not ended"; return; }
        done
    fi
    for file in $(LC_ALL=C grep -lsaE '^(sshd(-session)?: [^ @]+@|login -- )' /proc/[0-9]*/cmdline); do
        pid=${file#/proc/} pid=${pid%/*}
        case $ours in *" $pid "*) continue ;; esac
        user=$(tr '\0' ' ' <"$file" | sed 's/^.*: //; s/^login -- //; s/[@ ].*//')
        [ -z "$user" ] || { echo "$user is logged in"; return; }
    done
    if grep -qsx 'ssm-session-wor.*' /proc/[0-9]*/comm; then echo "somebody is logged in through Session Manager"; return; fi
    if grep -qsx slurmstepd /proc/[0-9]*/comm; then echo "a batch job runs"; return; fi
    if has_busy_kernel; then echo "a kernel of a notebook is busy"; return; fi
    find_load
}

# proc(5): after the name, fields 12 to 15 are the CPU time of a process and of its children that have ended. Ubuntu's
# awk prints numbers from 2^31 on as 2.14748e+09, which the shell cannot read.
find_load() {
    read -r before at 2>/dev/null <$run/ticks
    ticks=$(cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | awk '{ n += $12 + $13 + $14 + $15 } END { printf "%.0f", n }')
    echo "$ticks $(now)" >$run/ticks
    passed_s=$(($(now) - ${at:-0}))
    if [ -z "$before" ]; then
        echo "the CPU has not been measured yet"
    elif [ $passed_s -gt 0 ] && [ $(((ticks - before) / passed_s)) -ge $busy_percent ]; then
        echo "the CPU is busy: $(((ticks - before) / passed_s)) % of a core"
    elif ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
        use=$(timeout 20 nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits 2>/dev/null)
        gpu=$(echo "$use" | grep -v N/A | sort -n | tail -n 1)
        case $use in
        *N/A*)  # of a GPU that MIG divides, only the programs are known
            programs=$(timeout 20 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null) || programs=unknown
            [ -z "$programs" ] || { echo "a program uses a GPU"; return; }
            gpu=${gpu:-0} ;;
        esac
        case $gpu in
        '' | *[!0-9]*) echo "the GPUs cannot be read" ;;
        *) [ "$gpu" -lt $busy_gpu_percent ] || echo "a GPU is busy: $gpu %" ;;
        esac
    fi
}

# Notes since when this node has been idle, and why it is not. The end of a job is a use, too.
look() {
    why=$(find_use)
    since=$(cat $run/since 2>/dev/null || now)
    [ -z "$why" ] || since=$(now)
    for home in $(homes); do
        ended=$(stat -c %Y "$home"/.cluster/jobs/*/record.json 2>/dev/null | sort -n | tail -n 1)
        if [ "${ended:-0}" -gt "$since" ] && [ "$ended" -le "$(now)" ]; then since=$ended; fi
    done
    echo "$since" >$run/since
    echo "$why" >$run/why
}

# -- use of the cluster ------------------------------------------------------------------------------------------------

# Runs this program on another node, from the head: reach HOME ADDRESS VERB
reach() {
    folder=$1/.cluster/ssh
    timeout $ssh_s runuser -u "$(stat -c %U "$1")" -- ssh -F /dev/null -T -i "$folder/id_ed25519" -o IdentitiesOnly=yes \
        -o "UserKnownHostsFile=$folder/known_hosts" -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes \
        -o BatchMode=yes -o ConnectTimeout=5 -o LogLevel=ERROR "$2" \
        "exec sh -c 'test \$(id -u) = 0 || s=\"sudo -n\"; \$s sh $run/lease.sh $3'" </dev/null
}

# Calls $1 HOME ADDRESS for each other node, in the background, if this node is the head: only it knows their host keys.
for_others() {
    own=" $({ hostname -I || ip -o addr show | awk '{ sub("/.*", "", $4); print $4 }'; } 2>/dev/null | tr '\n' ' ') "
    for home in $(homes); do
        [ -s "$home/.cluster/ssh/id_ed25519" ] || continue
        for address in $(cut -d ' ' -f 1 "$home/.cluster/ssh/known_hosts" 2>/dev/null | sort -u); do
            case $own in *" $address "*) continue ;; esac
            "$1" "$home" "$address" &
        done
    done
}

# A node that does not answer is dead or cut off: it counts as idle from its last answer on.
ask() {
    [ -e "$run/others/$2" ] || now >"$run/others/$2"
    idle_s=$(reach "$1" "$2" idle | grep -xE '[0-9]{1,9}') || return
    echo $(($(now) - idle_s)) >"$run/$2.new" && mv "$run/$2.new" "$run/others/$2"
}

tell() { reach "$1" "$2" end >/dev/null 2>&1; }

# Since when the cluster has been idle, as far as this node knows.
idle_since() {
    { [ -e $run/since ] || now; cat $run/since $run/others/*; stat -c %Y $run/asked; } 2>/dev/null | sort -n | tail -n 1
}

is_asked() { [ -n "$(find $run/asked -newermt "@$(($(now) - idle))" 2>/dev/null)" ]; }

# -- the end -----------------------------------------------------------------------------------------------------------

# warn LEFT_S: tells logged-in users, running jobs and [notify], once for each end.
warn() {
    [ "$(cat $run/warned 2>/dev/null)" != "$why $end" ] || return 0
    echo "$why $end" >$run/warned
    case $why in
    lifetime) event=lease-ending because="its lifetime ends" remedy="cluster lease +4h" ;;
    idle) event=idle-ending because="it has been idle" remedy="cluster lease --idle 4h" ;;
    *) event=budget-reached because="its budget of \$$(word budget) is nearly spent" remedy="cluster lease --budget USD" ;;
    esac
    left="$1 seconds"
    [ "$1" -lt 90 ] || left="$((($1 + 30) / 60)) minutes"
    verb=end
    [ "$(word then)" = down ] || verb=stop
    cluster=$(cat $run/name)
    text="cluster $cluster: all nodes $verb in $left, because $because ($remedy changes it)"
    say "$text"
    mkdir -p $run/events
    echo "{\"event\": \"$event\", \"cluster\": \"$cluster\", \"at\": $(now), \"text\": \"$text\"}" >$run/new.json
    mv $run/new.json "$run/events/$event-$(now).json"
    for terminal in /dev/pts/[0-9]*; do printf '\r\n%s\r\n' "$text" | timeout 2 tee "$terminal" >/dev/null 2>&1; done
    for home in $(homes); do
        runtime=$(ls -td "$home"/.cluster/runtime/*/.complete 2>/dev/null | head -n 1)
        runtime=${runtime%/.complete}
        for job in $(grep -lsE '"state": ?"(starting|running|waiting)"' "$home"/.cluster/jobs/*/record.json); do
            job=${job%/*}
            HOME=$home timeout 60 runuser -u "$(stat -c %U "$home")" -- \
                "$runtime/bin/python" -Es "$runtime/node" jobs message "${job##*/}" "$text" >/dev/null 2>&1
        done
    done &
}

# EC2 terminates or stops the instance, by its InstanceInitiatedShutdownBehavior.
power_off() {
    sync &  # not waited for: a file system may hang
    sleep 3
    poweroff -ff >/dev/null 2>&1
}

end_node() {
    say "the lease has ended ($why): switching this node off"
    while :; do
        shutdown -P now >/dev/null 2>&1 &
        sleep 20
        power_off  # shutdown waits for a service, or is broken
    done
}

# Finds the coming end: sets why and left_s; left_s is empty if there is none.
find_end() {
    lease=$(cat $run/lease 2>/dev/null)
    end=$(word end) idle=$(word idle) left_s='' why=''
    idle=${idle%.*}
    if [ -n "$end" ]; then why=$(word why) left_s=$((end - $(now))); fi
    [ -n "$idle" ] || return 0
    every_s=$((idle / 20))
    [ $every_s -ge 2 ] || every_s=2
    [ $every_s -le 60 ] || every_s=60
    if [ $(($(now) - looked)) -ge $every_s ]; then
        looked=$(now)
        before=$why
        is_asked || look
        why=$before
        for_others ask
    fi
    idle_end=$(($(idle_since) + idle))
    if [ -z "$end" ] || [ $idle_end -lt "$end" ]; then why=idle end=$idle_end left_s=$((idle_end - $(now))); fi
}

# Waits for the end.
loop() {
    began=$(now) tagged=0 looked=0
    while :; do
        if [ $(($(now) - tagged)) -ge $tag_every_s ]; then read_tag; tagged=$(now); fi
        find_end
        sleep_s=10
        if [ -n "$left_s" ] && [ "$left_s" -le 0 ]; then
            # The tag may have a later lease. At a boot, the network may not be up yet.
            until read_tag || [ $(($(now) - began)) -ge $boot_s ]; do sleep 1; done
            looked=0  # somebody may have logged in since
            find_end
            if [ -n "$left_s" ] && [ "$left_s" -le 0 ]; then
                [ "$why" != idle ] || { for_others tell; sleep 2; }
                # All services have stopped; systemd now waits 90 s for processes that ignore this signal.
                trap power_off TERM
                end_node
            fi
        elif [ -n "$left_s" ]; then
            near_s=$warn_s
            if [ "$why" = idle ] && [ $((idle / 2)) -lt $near_s ]; then near_s=$((idle / 2)); fi
            [ "$left_s" -gt $near_s ] || warn "$left_s"
            [ "$left_s" -ge $sleep_s ] || sleep_s=$left_s
            if [ -n "$idle" ] && [ $every_s -lt $sleep_s ]; then sleep_s=$every_s; fi
        fi
        sleep $sleep_s
    done
}

case $1 in
boot)
    mkdir -p $run/others
    echo "$3" >$run/name
    instance=$(readlink /var/lib/cloud/instance)
    # An image that was made of a node has the lease of that node.
    [ "$(cat $saved/instance 2>/dev/null || echo "$instance")" = "$instance" ] || rm -f $saved/lease
    { cat $saved/lease; echo "$2"; } 2>/dev/null | choose >$run/boot
    offer "$(cat $run/boot)"
    setsid sh $run/lease.sh keep </dev/null >/dev/null 2>&1 &
    hook=/var/lib/cloud/scripts/per-boot/cluster-lease
    {
        mkdir -p $saved "$(dirname $hook)" && echo "$instance" >$saved/new && mv $saved/new $saved/instance &&
            cp $run/lease.sh $saved/new.sh && mv $saved/new.sh $saved/lease.sh && echo "#!/bin/sh
[ '$instance' = \"\$(readlink /var/lib/cloud/instance)\" ] || exit 0
mkdir -p $run && cp $saved/lease.sh $run/lease.sh && exec sh $run/lease.sh boot '$2' '$3'" >$hook && chmod 755 $hook
    } || echo "cluster-lease: no copy for the next boot" >&2
    ;;
keep)
    exec 9>$run/lock
    flock -n 9 || exit 0
    echo -1000 >/proc/self/oom_score_adj 2>/dev/null
    while :; do sh $run/lease.sh loop; sleep 1; done
    ;;
loop) loop ;;
set | show)
    [ "$1" = show ] || offer "$2"
    lease=$(cat $run/lease 2>/dev/null)
    idle=null why=
    if [ -n "$(word idle)" ]; then
        look
        [ "$1" = show ] || now >$run/since  # whoever changes the lease uses the cluster
        idle=$(($(now) - $(idle_since)))
        for other in "$run"/others/*; do
            if [ -z "$why" ] && [ $(($(now) - $(cat "$other" 2>/dev/null || echo 0))) -lt 30 ]; then
                why="the node at ${other##*/} is not idle"
            fi
        done
    fi
    [ -z "$why" ] && why=null || why=\"$(echo "$why" | tr -cd '[:alnum:] .:%_-')\"
    [ -e $run/unsaved ] && is_saved=false || is_saved=true
    echo "{\"lease\": \"$lease\", \"idle_s\": $idle, \"why\": $why, \"saved\": $is_saved}"
    ;;
idle | end)
    : >$run/asked
    look
    if [ "$1" = idle ]; then
        echo $(($(now) - since))
    elif [ -z "$why" ]; then
        why=idle
        end_node </dev/null >/dev/null 2>&1 &
    fi
    ;;
esac
