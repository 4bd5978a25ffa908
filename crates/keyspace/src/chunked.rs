//! A vector that grows without moving existing elements.
//!
//! When a `Vec` doubles, it moves all elements at once, which delays a command if there are millions of elements. In
//! this vector only the first chunk is reallocated when it grows; later chunks are allocated at full size.

const CHUNK_LEN: usize = 256;

#[derive(Debug)]
pub(crate) struct ChunkedVec<T> {
    chunks: Vec<Vec<T>>,
}

impl<T> Default for ChunkedVec<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> ChunkedVec<T> {
    pub(crate) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK_LEN + last.len())
    }

    pub(crate) fn push(&mut self, value: T) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK_LEN => {
                // Grow by half instead of doubling, because most chunked vectors are small and there are many of them.
                if last.len() == last.capacity() {
                    last.reserve_exact(last.len().div_ceil(2));
                }
                last.push(value);
            }
            None => {
                self.chunks.reserve_exact(1);
                self.chunks.push(vec![value]);
            }
            Some(_) => {
                let mut next = Vec::with_capacity(CHUNK_LEN);
                next.push(value);
                self.chunks.push(next);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.chunks.last_mut()?;
        let value = last.pop();
        if last.is_empty() {
            self.chunks.pop();
        }
        value
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Returns the number of heap bytes used.
    pub(crate) fn heap_bytes(&self) -> usize {
        let elements: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<T>()).sum();
        elements + self.chunks.capacity() * size_of::<Vec<T>>()
    }
}

impl<T> std::ops::Index<u32> for ChunkedVec<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.chunks[index as usize / CHUNK_LEN][index as usize % CHUNK_LEN]
    }
}

impl<T> std::ops::IndexMut<u32> for ChunkedVec<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[index as usize / CHUNK_LEN][index as usize % CHUNK_LEN]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_vec_matches_vec() {
        let mut chunked = ChunkedVec::default();
        for number in 0..1000u32 {
            chunked.push(number);
            assert_eq!(chunked.len(), number as usize + 1);
        }
        chunked[700] = 7;
        assert_eq!((chunked[255], chunked[256], chunked[700]), (255, 256, 7));
        assert_eq!(chunked.iter().count(), 1000);
        for number in (500..1000).rev() {
            assert_eq!(chunked.pop(), Some(if number == 700 { 7 } else { number }));
            assert_eq!(chunked.len(), number as usize);
        }
        chunked.push(1);
        assert_eq!((chunked[499], chunked[500]), (499, 1));
        assert_eq!(std::iter::from_fn(|| chunked.pop()).count(), 501);
        assert_eq!((chunked.pop(), chunked.len()), (None, 0));
    }
}
