use super::*;

/// Returns the free runs of a chunk in order, derived from the granule states.
fn runs_in(free: &[bool]) -> Vec<FreeRun> {
    let mut runs: Vec<FreeRun> = Vec::new();
    for (granule, _) in free.iter().enumerate().filter(|(_, free)| **free) {
        match runs.last_mut() {
            Some(run) if run.end() == granule => run.len += 1,
            _ => runs.push(FreeRun { start: granule, len: 1 }),
        }
    }
    runs
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

struct ReferenceRuns {
    runs: Runs,
    /// For each chunk, whether each granule is free.
    free_granules: Vec<Vec<bool>>,
    allocated: Vec<(usize, FreeRun)>,
}

impl ReferenceRuns {
    fn new(chunks: usize) -> Self {
        let mut runs = Runs::new();
        for chunk in 0..chunks {
            runs.add_chunk();
            runs.open_chunk(chunk);
        }
        Self { runs, free_granules: vec![vec![true; CHUNK_GRANULES]; chunks], allocated: Vec::new() }
    }

    fn mark(&mut self, chunk: usize, run: FreeRun, is_free: bool) {
        for granule in &mut self.free_granules[chunk][run.start..run.end()] {
            assert_ne!(*granule, is_free, "blocks do not overlap");
            *granule = is_free;
        }
    }

    /// Returns the length class, chunk and start of the best fitting run.
    fn best_fit(&self, granules: usize) -> Option<(usize, usize)> {
        let all = (0..self.free_granules.len())
            .flat_map(|chunk| runs_in(&self.free_granules[chunk]).into_iter().map(move |run| (run, chunk)));
        all.filter(|(run, _)| run.len >= granules).map(|(run, chunk)| (run.length_class(), chunk)).min()
    }

    fn take_block(&mut self, granules: usize) {
        let best = self.best_fit(granules);
        let taken = self.runs.allocate(granules);
        assert_eq!(taken.is_some(), best.is_some());
        let Some((chunk, start)) = taken else { return };
        let run = runs_in(&self.free_granules[chunk])
            .into_iter()
            .find(|run| run.start == start)
            .expect("a run's begin is taken");
        assert_eq!(best, Some((run.length_class(), chunk)), "the best fit is taken");
        self.record_allocated(chunk, FreeRun { start, len: granules });
    }

    fn allocate_below(&mut self, limit: usize, granules: usize) {
        let lowest = (0..self.free_granules.len())
            .find(|&chunk| runs_in(&self.free_granules[chunk]).iter().any(|run| run.len >= granules))
            .filter(|&chunk| chunk < limit);
        let taken = self.runs.allocate_below(limit, granules);
        assert_eq!(taken.map(|(chunk, _)| chunk), lowest);
        if let Some((chunk, start)) = taken {
            self.record_allocated(chunk, FreeRun { start, len: granules });
        }
    }

    fn record_allocated(&mut self, chunk: usize, run: FreeRun) {
        self.mark(chunk, run, false);
        self.allocated.push((chunk, run));
    }

    fn free_block(&mut self, index: usize) {
        let (chunk, run) = self.allocated.swap_remove(index);
        self.runs.free_block(chunk, run.start, run.len);
        self.mark(chunk, run, true);
    }

    /// Checks that searching finds exactly the existing runs.
    fn check_equal(&self) {
        let (mut lengths, mut whole) = (0, 0);
        for (chunk, free) in self.free_granules.iter().enumerate() {
            let mut parts = [0; LENGTH_CLASS_COUNT];
            for run in runs_in(free) {
                parts[run.length_class()] |= 1 << run.part_index();
                lengths |= 1 << run.length_class();
            }
            assert_eq!(*self.runs.chunks[chunk].parts_with_run, parts);
            for (length, parts) in parts.iter().enumerate() {
                assert_eq!(self.runs.chunks_with_run[length].contains(chunk), *parts != 0);
            }
            whole += free.chunks(64).filter(|word| word.iter().all(|free| *free)).count();
            assert_eq!(self.runs.is_empty(chunk), free.iter().all(|free| *free));
            for (page, free) in free.chunks(SYSTEM_PAGE_GRANULES).enumerate() {
                assert_eq!(self.runs.is_page_free(chunk, page), free.iter().all(|free| *free));
            }
        }
        assert_eq!((self.runs.length_mask, self.runs.free_granules()), (lengths, whole * 64));
    }
}

#[test]
fn allocation_is_best_fit_and_free_merges_runs() {
    // Small blocks create many runs per part; large ones fill the chunks.
    for (seed, most) in [3, 8, 30, 128, 128, 128].into_iter().enumerate() {
        let mut random = Rng(seed as u64);
        let mut twin = ReferenceRuns::new(2);
        for step in 0..1000 {
            let granules = 1 + random.below(most);
            match random.below(10) {
                0..=4 => twin.take_block(granules),
                5 => twin.allocate_below(random.below(3), granules),
                _ if twin.allocated.is_empty() => {}
                _ => twin.free_block(random.below(twin.allocated.len())),
            }
            if step % 100 == 0 {
                twin.check_equal();
            }
        }
        while !twin.allocated.is_empty() {
            twin.free_block(0);
        }
        twin.check_equal();
        assert_eq!(twin.runs.free_granules(), 2 * CHUNK_GRANULES);
    }
}

#[test]
fn closed_chunk_is_not_used_until_opened() {
    let mut runs = Runs::new();
    runs.add_chunk();
    assert_eq!(runs.allocate(1), None);
    runs.open_chunk(0);
    assert_eq!(runs.allocate(1), Some((0, 0)));
    runs.free_block(0, 0, 1);
    runs.close_chunk(0);
    assert_eq!((runs.allocate(1), runs.free_granules()), (None, 0));
    runs.open_chunk(0);
    assert_eq!(runs.allocate(128), Some((0, 0)));
}

#[test]
#[should_panic(expected = "given back once")]
fn freeing_a_block_twice_panics() {
    let mut runs = Runs::new();
    runs.add_chunk();
    runs.open_chunk(0);
    let (chunk, start) = runs.allocate(3).expect("there is room");
    runs.free_block(chunk, start, 3);
    runs.free_block(chunk, start, 3);
}
