use proptest::prelude::*;

use super::*;

const MAX_VALUES: usize = 3000;

fn observations_of_numbers(count: u64) -> impl Iterator<Item = Observation> {
    (0..count).map(|number| Observation::from_element(number.to_string().as_bytes()))
}

fn build_sketch(observations: impl IntoIterator<Item = Observation>, max_sparse_bytes: usize) -> Vec<u8> {
    let mut bytes = empty_sketch();
    for seen in observations {
        observe(&mut bytes, seen, max_sparse_bytes).expect("a sketch of ours");
    }
    bytes
}

fn read_registers(bytes: &[u8]) -> Vec<u8> {
    let mut registers = Registers::default();
    registers.merge(Sketch::from_bytes(bytes).expect("a sketch")).expect("whole");
    registers.register_values().to_vec()
}

/// The expected bytes were taken from Redis 7.0 with the same elements.
#[test]
fn sketch_bytes_match_redis() {
    assert_eq!(empty_sketch(), b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff");
    let letters =
        |text: &str| text.bytes().map(|letter| Observation::from_element(&[letter])).collect::<Vec<_>>();
    assert_eq!(build_sketch(letters("a"), MAX_VALUES)[HEADER_BYTES..], *b"q\xa6\x84NW");
    assert_eq!(
        build_sketch(letters("abcdef"), MAX_VALUES)[HEADER_BYTES..],
        *b"Fm\x80V\x0c\x80Dv\x80P\xb1\x84I\x8c\x80Bm\x80BZ"
    );
}

#[test]
fn estimate_is_within_error_bound() {
    for count in [0, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000] {
        let bytes = build_sketch(observations_of_numbers(count), MAX_VALUES);
        let estimate = Sketch::from_bytes(&bytes).unwrap().estimate().unwrap();
        let error = (estimate as f64 - count as f64).abs() / (count as f64).max(1.0);
        assert!(error < 0.03, "{estimate} of {count}");
        assert_eq!(Sketch::from_bytes(&bytes).unwrap().is_dense(), count > 1500, "{count}");
    }
    assert_eq!(self_test(), Ok(()));
}

#[test]
fn cached_estimate_is_invalidated_by_observations() {
    let mut bytes = build_sketch(observations_of_numbers(10), MAX_VALUES);
    assert_eq!(Sketch::from_bytes(&bytes).unwrap().cached_estimate(), None);
    store_estimate(&mut bytes, 10);
    assert_eq!(Sketch::from_bytes(&bytes).unwrap().cached_estimate(), Some(10));
    observe(&mut bytes, Observation::from_element(b"5"), MAX_VALUES).unwrap();
    assert_eq!(Sketch::from_bytes(&bytes).unwrap().cached_estimate(), Some(10));
    observe(&mut bytes, Observation::from_element(b"other"), MAX_VALUES).unwrap();
    assert_eq!(Sketch::from_bytes(&bytes).unwrap().cached_estimate(), None);
}

#[test]
fn invalid_sketch_differs_from_corrupt_sketch() {
    let dense = build_sketch(observations_of_numbers(100_000), MAX_VALUES);
    for bytes in [&b""[..], b"HYLL", b"HYLX\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff", &dense[..dense.len() - 1]] {
        assert_eq!(Sketch::from_bytes(bytes).unwrap_err(), SketchError::NotASketch);
    }
    for runs in [&b""[..], b"\x7f", b"\x7f\xfe", b"\x7f\xff\0", b"\x7f\xff\x7f\xff", b"\x40"] {
        let mut bytes = empty_sketch();
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(runs);
        assert_eq!(Sketch::from_bytes(&bytes).unwrap().estimate(), Err(SketchError::Corrupt), "{runs:x?}");
        assert_eq!(make_dense(&mut bytes.clone()), Err(SketchError::Corrupt), "{runs:x?}");
        let mut registers = Registers::default();
        assert_eq!(
            registers.merge(Sketch::from_bytes(&bytes).unwrap()),
            Err(SketchError::Corrupt),
            "{runs:x?}"
        );
    }
}

fn any_observations() -> impl Strategy<Value = Vec<Observation>> {
    // The registers are clustered, so that runs are split and merged.
    let register = prop_oneof![0usize..40, 60usize..70, 16_300usize..REGISTER_COUNT, 0..REGISTER_COUNT];
    let one = (register, 1u8..36).prop_map(|(register, value)| Observation { register, value });
    proptest::collection::vec(one, 0..300)
}

proptest! {
    /// In both encodings, a sketch's registers hold the maximum of their observations.
    #[test]
    fn registers_hold_maximum_observation(seen in any_observations(), most in 0usize..400) {
        let mut highest = vec![0; REGISTER_COUNT];
        let mut bytes = empty_sketch();
        for seen in seen {
            let value = &mut highest[seen.register];
            let changes = *value < seen.value;
            *value = (*value).max(seen.value);
            prop_assert_eq!(observe(&mut bytes, seen, most), Ok(changes));
            let sketch = Sketch::from_bytes(&bytes).unwrap();
            prop_assert!(sketch.is_dense() || bytes.len() <= most.max(HEADER_BYTES + 2));
            prop_assert!(!sketch.would_raise_dense_register(seen));
        }
        prop_assert_eq!(read_registers(&bytes), &highest[..]);
        let estimate = Sketch::from_bytes(&bytes).unwrap().estimate();
        make_dense(&mut bytes).unwrap();
        prop_assert_eq!(read_registers(&bytes), &highest[..]);
        prop_assert_eq!(Sketch::from_bytes(&bytes).unwrap().estimate(), estimate);
    }

    /// Arbitrary bytes are either refused or used as a sketch; no bytes cause a panic.
    #[test]
    fn arbitrary_input_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..200), seen in any_observations()) {
        let mut bytes = empty_sketch();
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&body);
        let _ = Sketch::from_bytes(&bytes).unwrap().estimate();
        let _ = Sketch::from_bytes(&bytes).unwrap().runs().count();
        for seen in seen {
            let before = bytes.clone();
            if observe(&mut bytes, seen, MAX_VALUES).is_err() {
                prop_assert_eq!(&bytes, &before, "nothing is changed by what fails");
            }
        }
    }
}
