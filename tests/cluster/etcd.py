# SPDX-License-Identifier: Apache-2.0
"""A real etcd, a member on each of some hosts. Its data lies in the cluster's folder: on a disk that outlives a loss of power."""

from harness import need


class Etcd:
    def __init__(self, cluster, *hosts):
        need("etcd")
        self.cluster, self.hosts, self.members = cluster, hosts, {}
        for i in hosts:
            self.start(i)
        self.ready()

    @property
    def url(self):
        return "etcd://" + ",".join(f"node{i}:2379" for i in self.hosts)

    def start(self, i):
        """(Again) on node i."""
        at = lambda k, port: f"http://{self.cluster[k].addr}:{port}"
        peers = ",".join(f"m{k}={at(k, 2380)}" for k in self.hosts)
        p = self.cluster[i].spawn("etcd", "--name", f"m{i}", "--data-dir", self.cluster.tmp / f"etcd-{i}", "--initial-cluster", peers, "--logger", "zap",
                                  "--listen-peer-urls", at(i, 2380), "--initial-advertise-peer-urls", at(i, 2380), "--listen-client-urls", at(i, 2379),
                                  "--advertise-client-urls", at(i, 2379), "--heartbeat-interval", 100, "--election-timeout", 1000)
        self.members[i] = p
        self.cluster.daemons.append(p)

    def ready(self):
        """Until all that were started serve."""
        for p in self.members.values():
            p.expect("ready to serve client requests|serving client|serving insecure client", 30)

    def lose(self, *hosts):
        """Their power fails."""
        for i in hosts:
            self.cluster[i].power_off()
            self.members.pop(i).exit()

    def back(self, *hosts):
        for i in hosts:
            self.cluster[i].boot()
            self.start(i)
        self.ready()
