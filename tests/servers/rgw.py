"""A Ceph cluster of one node with its S3 gateway, a real server that runs from unpacked Debian packages.

It has one monitor, one OSD and one gateway, but no manager and no `ceph` command. The monitor starts with a
map that already contains the OSD, so it needs no further commands. The settings and their reasons:

- BlueStore on a sparse file: the OSD's memory stays below 250 MiB for any data. The alternative, a store in
  memory, starts in one second instead of eight, and needs twice the memory.
- `paxos_propose_interval`: by default the monitor collects proposals for a second, and the gateway makes
  eight pools one after another.
- `rgw_gc_*`: deleted and overwritten objects are freed within seconds. By default they stay for two hours,
  and requests to a full cluster hang instead of failing.
- `tcp_nodelay`: without it, each small read takes 40 milliseconds.
- Every log, socket and pid file is either in the scratch folder or not written.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from servers.places import ACCESS_KEY, SECRET_KEY
from servers.processes import NotReady, bound_to_us, free_port, process, wait_until_it_answers

DISK_SIZE_BYTES: Final = 12 * 2**30
"""The size limit of the sparse file. BlueStore reuses freed space after it has used the whole file once."""

OSD_MEMORY_SIZE_BYTES: Final = 896 * 2**20
"""The smallest memory target that BlueStore accepts."""

TOOL_SECONDS: Final = 60

CAPABILITIES: Final = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
    "client.rgw": {"mon": "allow rw", "osd": "allow rwx"},
}

CONFIGURATION: Final = """
[global]
fsid = {fsid}
mon_host = {monitor}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx

keyring = {scratch}/keyring
mon_data = {scratch}/mon
osd_data = {scratch}/osd
rgw_data = {scratch}/rgw
run_dir = {scratch}
crash_dir = {scratch}
log_file = {scratch}/$name.log
mon_cluster_log_file = {scratch}/cluster.log
admin_socket =
pid_file =
plugin_dir = {libraries}/ceph
erasure_code_dir = {libraries}/ceph/erasure-code
osd_class_dir = {libraries}/rados-classes

osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_data_avail_warn = 2
mon_data_avail_crit = 1
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 1000
paxos_propose_interval = 0.02
paxos_min_wait = 0.01

osd_objectstore = bluestore
bluestore_block_size = {disk_size_bytes}
osd_memory_target = {osd_memory_size_bytes}

[osd.0]
host = localhost

[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_enable_apis = s3
rgw_dns_name = localhost
rgw_gc_obj_min_wait = 2
rgw_gc_processor_period = 5
"""


@contextmanager
def ceph_gateway(program: Path, scratch: Path) -> Iterator[str]:
    """Yield the URL of a gateway with one user. On exit it is stopped first, then the OSD and the monitor."""
    libraries = next(program.glob("usr/lib/*/ceph")).parent
    port, fsid = free_port(), uuid4()
    monitor = f"[v2:127.0.0.1:{free_port()},v1:127.0.0.1:{free_port()}]"
    for folder in ("mon", "osd", "rgw"):
        (scratch / folder).mkdir()
    (scratch / "ceph.conf").write_text(
        CONFIGURATION.format(
            fsid=fsid,
            monitor=monitor,
            scratch=scratch,
            libraries=libraries,
            disk_size_bytes=DISK_SIZE_BYTES,
            osd_memory_size_bytes=OSD_MEMORY_SIZE_BYTES,
            port=port,
        )
    )
    node = _Node(program, libraries, scratch)
    node.make_keys()
    node.run("monmaptool", "--create", "--fsid", str(fsid), "--addv", "a", monitor, "monmap")
    node.run("osdmaptool", "--create-from-conf", "osdmap")
    node.run(
        "ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--osdmap", "osdmap", "--keyring", "keyring"
    )
    endpoint = f"http://127.0.0.1:{port}"
    with ExitStack() as daemons:
        daemons.enter_context(node.daemon("ceph-mon", "-i", "a"))
        node.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", str(uuid4()))  # asks the monitor
        daemons.enter_context(node.daemon("ceph-osd", "-i", "0"))
        gateway = daemons.enter_context(node.daemon("radosgw", "-n", "client.rgw"))
        wait_until_it_answers(endpoint, gateway, log=scratch / "radosgw.out")
        node.run(
            *("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=tier", "--display-name=tier"),
            *(f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"),
        )
        yield endpoint


class _Node:
    """The programs of Ceph, which run in the scratch folder with its configuration."""

    def __init__(self, program: Path, libraries: Path, scratch: Path) -> None:
        self._bin, self._scratch = program / "usr" / "bin", scratch
        beside = program / "lib" / libraries.name  # some packages have their libraries here
        self._env: Mapping[str, str] = {
            "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'ceph'}:{beside}",
            "CEPH_CONF": str(scratch / "ceph.conf"),
        }

    def make_keys(self) -> None:
        """Make one keyring for all programs."""
        self.run("ceph-authtool", "keyring", "--create-keyring")
        for name, may in CAPABILITIES.items():
            grants = [word for service, grant in may.items() for word in ("--cap", service, grant)]
            self.run("ceph-authtool", "keyring", "--gen-key", "-n", name, *grants)

    def run(self, tool: str, *arguments: str) -> None:
        """Run one of the tools to its end. Raises `NotReady` with its output if it failed."""
        try:
            done = subprocess.run(
                [*bound_to_us(), self._bin / tool, *arguments],
                cwd=self._scratch,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TOOL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise NotReady(f"{tool} was not done after {TOOL_SECONDS} seconds") from exc
        if done.returncode:
            raise NotReady(f"{tool} ended with code {done.returncode}: {done.stderr.strip()[-300:]}")

    @contextmanager
    def daemon(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run one of the daemons in the foreground of a process of ours."""
        argv, log = (self._bin / name, "-f", *arguments), self._scratch / f"{name}.out"
        with process(*argv, log=log, env=self._env, cwd=self._scratch) as running:
            yield running
