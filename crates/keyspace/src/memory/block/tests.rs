use super::*;
use crate::memory::pool::{PoolUsage, begin_purge_round, pool_usage, prepare_chunk, purge_pool};

#[test]
fn blocks_of_all_sizes_keep_their_contents() {
    let mut seed = 7u64;
    let mut held: Vec<(Block, u8)> = Vec::new();
    for round in 0..20_000u32 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 33) as usize;
        if held.len() > 500 || (random & 1 == 1 && !held.is_empty()) {
            let (mut block, mark) = held.swap_remove(random / 2 % held.len());
            assert!(block.bytes().iter().all(|&byte| byte == mark), "another block wrote into this one");
            block.move_to_lower_addresses();
            assert!(block.bytes().iter().all(|&byte| byte == mark), "moving keeps the bytes");
            let len = (block.len() / 2).next_multiple_of(GRANULE_BYTES);
            block.truncate(len);
            assert_eq!(block.len(), len);
            assert!(block.bytes().iter().all(|&byte| byte == mark), "cutting keeps what is left");
            if round % 4 == 0 {
                held.push((block, mark));
            }
        } else {
            let len = (1 + random / 2 % MAX_GRANULES) * GRANULE_BYTES;
            let mut block = Block::new(len);
            assert_eq!(block.len(), len);
            block.bytes_mut().fill(round as u8);
            held.push((block, round as u8));
        }
        if round % 1000 == 0 {
            purge_pool(0, 1);
        }
    }
    for (block, mark) in held {
        assert!(block.bytes().iter().all(|&byte| byte == mark));
    }
}

#[test]
fn freed_blocks_merge_and_return_to_the_kernel() {
    let lines: Vec<CacheLinePair> = (0..100_000).map(|_| CacheLinePair::new()).collect();
    assert!(pool_usage().used_bytes >= 100_000 * CacheLinePair::LEN);
    drop(lines);
    let before = pool_usage();
    assert!(purge_pool(0, 1) > 4_000_000, "what was freed in small blocks is given back in whole pages");
    assert!(pool_usage().mapped_bytes < before.mapped_bytes);
    // The freed memory can be used again.
    let mut block = Block::new(Block::MAX_BLOCK_BYTES);
    block.bytes_mut().fill(9);
    assert!(block.bytes().iter().all(|&byte| byte == 9));
}

#[test]
fn blocks_move_to_lower_chunks_while_useful() {
    let block = || Some(Block::new(Block::MAX_BLOCK_BYTES));
    let mut held: Vec<Option<Block>> =
        (0..20 * CHUNK_BYTES / Block::MAX_BLOCK_BYTES).map(|_| block()).collect();
    assert!(!begin_purge_round(), "next to nothing lies free");
    held.iter_mut().step_by(2).for_each(|block| *block = None);
    assert!(begin_purge_round(), "half of the pool lies free");
    held.iter_mut().flatten().for_each(Block::move_to_lower_addresses);
    purge_pool(0, 1);
    let PoolUsage { used_bytes: taken, mapped_bytes: resident, .. } = pool_usage();
    assert!(resident <= taken + CHUNK_BYTES, "the upper half is given back: {resident} for {taken}");
    // Every second cache line is free now, so no two adjacent lines are.
    let lines: Vec<CacheLinePair> =
        (0..20 * CHUNK_BYTES / CacheLinePair::LEN).map(|_| CacheLinePair::new()).collect();
    let lines: Vec<CacheLinePair> =
        lines.into_iter().enumerate().filter_map(|(i, line)| (i % 2 == 0).then_some(line)).collect();
    assert!(begin_purge_round());
    held.iter_mut().flatten().for_each(Block::move_to_lower_addresses);
    assert!(!begin_purge_round(), "a round in vain is not repeated");
    drop(lines);
    assert!(begin_purge_round(), "there is something new to do");
}

#[test]
fn next_chunk_is_prepared_when_pool_runs_low() {
    std::thread::spawn(|| {
        loop {
            prepare_chunk();
        }
    });
    let mut held: Vec<Block> = Vec::new();
    let most = 150 * CHUNK_BYTES / Block::MAX_BLOCK_BYTES;
    while pool_usage().ready_bytes == 0 && held.len() < most {
        held.push(filled_block(held.len()));
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    assert_eq!(pool_usage().ready_bytes, CHUNK_BYTES, "a chunk lies ready");
    let before = pool_usage();
    while held.len() < most {
        held.push(filled_block(held.len()));
    }
    assert!(pool_usage().used_bytes > before.used_bytes && pool_usage().mapped_bytes > before.mapped_bytes);
    for (number, block) in held.iter().enumerate() {
        assert!(block.bytes().iter().all(|&byte| byte == number as u8), "another block wrote into this one");
    }
    drop(held);
    purge_pool(0, 1);
    let closed = pool_usage();
    assert!(closed.mapped_bytes <= 2 * CHUNK_BYTES, "chunks without blocks are closed: {closed:?}");
    let again: Vec<_> = (0..most).map(filled_block).collect();
    assert!(again.iter().enumerate().all(|(number, block)| block.bytes()[0] == number as u8));
}

/// Returns a block of maximum size, filled with the low byte of `number`.
fn filled_block(number: usize) -> Block {
    let mut block = Block::new(Block::MAX_BLOCK_BYTES);
    block.bytes_mut().fill(number as u8);
    block
}

#[test]
fn option_of_block_has_no_overhead() {
    assert_eq!((size_of::<Option<Block>>(), size_of::<Option<CacheLinePair>>()), (5, 4));
}
