#!/bin/sh
# Removes what an image must not have from this node, and switches it off: the last step before `cluster image bake`
# makes an image of its disk. Runs as root. Prints "scrubbed" when all is removed.
#
# Of ~/.cluster, only what is named below stays. Of the rest of the disk, what is named below goes, after the list in
# https://docs.aws.amazon.com/imagebuilder/latest/userguide/security-best-practices.html#post-build-clean-up
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
name=$(uname -n)

# Overwrites the files, too: a snapshot has the blocks of deleted files.
wipe() {
    for path; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        [ -L "$path" ] || find "$path" -xdev -type f -exec shred -n 1 -u -- {} + || :  # one that is gone meanwhile
        rm -rf -- "$path"
    done
}

awk -F: '$3 == 0 || ($3 >= 1000 && $3 <= 60000) { print $6 }' /etc/passwd | sort -u | while read -r home; do
    [ -d "$home" ] || continue
    wipe "$home/.ssh" "$home"/.*_history "$home/.lesshst" "$home/.viminfo" "$home/.local/share/fish/fish_history"
    wipe "$home/.aws" "$home/.docker/config.json" "$home/.config/containers/auth.json" "$home/.netrc" "$home/.pypirc" \
        "$home/.git-credentials" "$home/.config/gh" "$home/.config/gcloud" "$home/.config/rclone" "$home/.kaggle" \
        "$home/.cache/huggingface/token" "$home/.cache/huggingface/stored_tokens" "$home/.config/wandb"
    cluster=$home/.cluster
    [ ! -d "$cluster/setup/$name" ] || mv -T "$cluster/setup/$name" "$cluster/setup/baked" # facts.sh takes it from there
    for path in "$cluster"/* "$cluster"/.[!.]* "$cluster"/setup/* "$cluster"/files/*/tree-* "$cluster"/files/*/image-*; do
        case ${path#"$cluster/"} in
        env | files | python | runtime | setup | setup/baked | tools) ;;
        *) wipe "$path" ;;
        esac
    done
done

# A first boot that still goes on would write again, and an installation that is cut off would break the image.
! command -v cloud-init >/dev/null || timeout 300 cloud-init status --wait >/dev/null 2>&1 || :
if command -v dpkg >/dev/null; then
    systemctl stop apt-daily.timer apt-daily-upgrade.timer apt-daily apt-daily-upgrade >/dev/null 2>&1 || :
    timeout 600 sh -c 'until dpkg --configure -a >/dev/null 2>&1 </dev/null; do sleep 2; done'
fi

# Keys and addresses of this instance, which the next one gets at its first boot, and the lease.
wipe /etc/ssh/ssh_host_* /etc/hostname /var/lib/dhcp/* /var/lib/dhclient /var/lib/NetworkManager /var/lib/amazon/ssm \
    /var/lib/systemd/random-seed /var/lib/cluster-lease /var/lib/cloud/scripts/per-boot/cluster-lease \
    /var/lib/cloud/data /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/sem
sed -i "/[[:space:]]$name\([[:space:].]\|$\)/d" /etc/hosts
: >/etc/machine-id
wipe /tmp/* /tmp/.[!.]* /var/tmp/* /var/log/journal/* /var/spool/mail/*
find /var/log -xdev -type f -exec shred -n 1 -- {} + || :
find /var/log -xdev -type f -delete

# Nothing is written afterwards: shells that still run save no history, and services that end write no logs. The pause
# is for this answer, and those who have a log open write into a file that is deleted.
setsid sh -c 'sleep 2; sync; poweroff -ff' </dev/null >/dev/null 2>&1 &
echo scrubbed
