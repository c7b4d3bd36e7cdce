#!/bin/bash
# Runs "$@" as rank 0 on node0 and as rank 1 on node1, two network namespaces that a veth pair joins. To be called in namespaces of its own
# (unshare --mount --net --uts): everything made here ends with them. $BETWEEN is run before the ranks start; node1 is `ip -n node1` there.
set -e
mount -t tmpfs tmpfs /run
printf '127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
ip netns add node1
ip link set lo up
ip link add eth0 type veth peer name eth1 netns node1
ip -n node1 link set eth1 name eth0
ip -n node1 link set lo up
ip addr add 10.77.0.1/24 dev eth0
ip -n node1 addr add 10.77.0.2/24 dev eth0
ip -n node1 link set eth0 up
ip link set eth0 up
hostname node0
eval "$BETWEEN"
export WORLD_SIZE=2 MASTER_ADDR=${MASTER_ADDR:-10.77.0.1}
# A folder that node1 does not have.
hide='[ -z "$ONLY_ON_NODE0" ] || mount -t tmpfs tmpfs "$ONLY_ON_NODE0"'
RANK=1 ip netns exec node1 unshare --uts --mount sh -c "hostname node1; $hide; "'exec "$@"' sh "$@" &
other=$!
code=0
RANK=0 "$@" || code=$?
wait $other || code=$?
exit $code
