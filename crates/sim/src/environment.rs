//! How the network and the disks of a run behave. Each seed draws other distributions, since a fault may only show in a
//! network with a few very late packets, or behind a disk that is slow for a moment.

use std::time::Duration;

use crate::RandomSource;

/// A distribution of durations: most are short, a few are long.
#[derive(Debug, Clone, Copy)]
struct DelayDistribution {
    /// The longest of the usual durations, in milliseconds.
    usual_max_millis: u64,
    /// How many of a hundred durations may be longer than usual.
    outlier_percent: u32,
    /// The longest duration, in milliseconds.
    max_millis: u64,
}

impl DelayDistribution {
    fn draw(self, random: &mut RandomSource) -> Duration {
        let is_outlier = self.outlier_percent > 0 && random.random_bool(self.outlier_percent);
        random.random_millis(0, if is_outlier { self.max_millis } else { self.usual_max_millis })
    }
}

/// Which hosts a partition separates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartitionShape {
    /// One host is isolated.
    OneHost,
    /// The hosts are split into two parts.
    TwoParts,
    /// The hosts are split into two parts, and one host reaches both.
    Bridge,
    /// Packets from one group of hosts to the other are lost; packets in the opposite direction arrive.
    OneWay,
    /// Packets from one host to another are lost, but not those in the other direction.
    OneDirection,
}

/// The network of a run.
#[derive(Debug, Clone)]
pub(crate) struct NetworkBehavior {
    latency: DelayDistribution,
    /// Of a hundred packets of the cluster bus, the number that is lost.
    pub(crate) loss_percent: u32,
    /// Of a hundred packets of the cluster bus, the number that arrives a second time.
    pub(crate) duplicate_percent: u32,
    /// The maximum delay of a duplicated packet, in milliseconds. Packets sent in the meantime overtake the duplicate.
    pub(crate) max_duplicate_delay_millis: u64,
    partition_shapes: Vec<PartitionShape>,
    /// The range of the durations of partitions, in milliseconds. `None` if a partition lasts until a fault ends it.
    partition_millis: Option<(u64, u64)>,
}

impl NetworkBehavior {
    /// Draws the network of a run.
    pub(crate) fn draw(random: &mut RandomSource) -> Self {
        let usual = random.pick_random(&[1, 3, 10, 30]);
        let latency = DelayDistribution {
            usual_max_millis: usual,
            outlier_percent: random.pick_random(&[0, 0, 1, 5]),
            max_millis: usual * random.pick_random(&[5, 20]),
        };
        let shapes = [
            PartitionShape::OneHost,
            PartitionShape::TwoParts,
            PartitionShape::Bridge,
            PartitionShape::OneWay,
            PartitionShape::OneDirection,
        ];
        let mut partition_shapes: Vec<_> = shapes.into_iter().filter(|_| random.random_bool(50)).collect();
        if partition_shapes.is_empty() {
            partition_shapes = shapes.to_vec();
        }
        Self {
            latency,
            loss_percent: random.pick_random(&[0, 0, 2, 8]),
            duplicate_percent: random.pick_random(&[0, 0, 2, 8]),
            max_duplicate_delay_millis: random.pick_random(&[20, 300, 1500]),
            partition_shapes,
            partition_millis: random.pick_random(&[None, None, Some((20, 400)), Some((100, 5000))]),
        }
    }

    /// Draws the time that a message needs.
    pub(crate) fn draw_latency(&self, random: &mut RandomSource) -> Duration {
        self.latency.draw(random)
    }

    /// Makes the network reliable, at the end of the faults.
    pub(crate) fn heal(&mut self) {
        (self.latency.outlier_percent, self.loss_percent, self.duplicate_percent) = (0, 0, 0);
    }

    /// Draws how long a partition lasts; `None` if a fault ends it.
    pub(crate) fn draw_partition_duration(&self, random: &mut RandomSource) -> Option<Duration> {
        self.partition_millis.map(|(shortest, longest)| random.random_millis(shortest, longest))
    }

    /// Draws a partition of `hosts` hosts: pairs (sender, receiver) between which nothing arrives.
    pub(crate) fn draw_partition(&self, hosts: usize, random: &mut RandomSource) -> Vec<(usize, usize)> {
        let shape = random.pick_random(&self.partition_shapes);
        let (one, other) = (random.random_below(hosts), random.random_below(hosts));
        let part: Vec<bool> = match shape {
            PartitionShape::OneHost | PartitionShape::OneDirection => {
                (0..hosts).map(|host| host == one).collect()
            }
            PartitionShape::TwoParts | PartitionShape::Bridge | PartitionShape::OneWay => {
                (0..hosts).map(|_| random.random_bool(50)).collect()
            }
        };
        let is_separated = |from: usize, to: usize| match shape {
            PartitionShape::OneHost | PartitionShape::TwoParts => part[from] != part[to],
            PartitionShape::Bridge => part[from] != part[to] && from != other && to != other,
            PartitionShape::OneWay => part[from] && !part[to],
            PartitionShape::OneDirection => from == one && to == other && one != other,
        };
        let pairs = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to)));
        pairs.filter(|&(from, to)| is_separated(from, to)).collect()
    }
}

/// The disks of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskBehavior {
    sync_delay: DelayDistribution,
    /// How likely an unsynced write survives the death of the process or a power failure, in percent.
    pub(crate) survival_percent: u32,
}

impl DiskBehavior {
    /// Draws the behaviour of the disks of a run.
    pub(crate) fn draw(random: &mut RandomSource) -> Self {
        let sync = DelayDistribution {
            usual_max_millis: random.pick_random(&[1, 4, 15]),
            outlier_percent: random.pick_random(&[0, 0, 2]),
            max_millis: random.pick_random(&[50, 200]),
        };
        Self { sync_delay: sync, survival_percent: random.pick_random(&[10, 50, 50, 90]) }
    }

    /// Makes the disks reliable, at the end of the faults.
    pub(crate) fn heal(&mut self) {
        self.sync_delay.outlier_percent = 0;
    }

    /// Draws the duration of a sync.
    pub(crate) fn draw_sync_time(self, random: &mut RandomSource) -> Duration {
        self.sync_delay.draw(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_networks() -> impl Iterator<Item = (NetworkBehavior, RandomSource)> {
        (0..200).map(|seed| {
            let mut random = RandomSource::new(seed);
            (NetworkBehavior::draw(&mut random), random)
        })
    }

    #[test]
    fn seeds_draw_different_distributions() {
        let mut latencies: Vec<Duration> = random_networks()
            .map(|(network, mut random)| {
                (0..100).map(|_| network.draw_latency(&mut random)).max().expect("a latency")
            })
            .collect();
        latencies.sort_unstable();
        assert!(latencies[20] < Duration::from_millis(4), "{latencies:?}");
        assert!(latencies[180] > Duration::from_millis(50), "{latencies:?}");
        let durations = |(network, mut random): (NetworkBehavior, RandomSource)| {
            network.draw_partition_duration(&mut random).is_some()
        };
        let limited = random_networks().map(durations).filter(|is_limited| *is_limited).count();
        assert!((50..150).contains(&limited), "{limited}");
    }

    #[test]
    fn partitions_have_all_shapes_and_never_separate_a_host_from_itself() {
        let (mut one_way, mut two_way, mut bridged) = (0, 0, 0);
        for (network, mut random) in random_networks() {
            let separated = network.draw_partition(6, &mut random);
            assert!(separated.iter().all(|(from, to)| from != to && *from < 6 && *to < 6));
            let is_two_way = separated.iter().all(|&(from, to)| separated.contains(&(to, from)));
            if separated.is_empty() {
                continue;
            }
            *(if is_two_way { &mut two_way } else { &mut one_way }) += 1;
            let reaches_all = |host: usize| separated.iter().all(|&(from, to)| from != host && to != host);
            bridged += usize::from(is_two_way && (0..6).any(reaches_all));
        }
        assert!(one_way > 20 && two_way > 20 && bridged > 5, "{one_way}, {two_way}, {bridged}");
    }
}
