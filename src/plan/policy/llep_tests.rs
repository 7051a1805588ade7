//! Examples of LLEP worked by hand. Owners hold consecutive experts.

use super::*;

fn spread(alpha: f64, min_chunk: u32, owners: &[u32], pairs: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let ranks = owners.iter().max().map_or(0, |&r| r as usize + 1);
    Llep { alpha, min_chunk, lambda: 0.0 }.spread(pairs, owners, ranks).unwrap()
}

#[test]
fn pending_experts_of_a_rank_stop_a_spill_to_it() {
    // Cap 1500 / 3. Expert 0 keeps 500; rank 1 has nothing yet but 590 pending, so rank 2 gets the 400. Expert 2 keeps
    // 210 beside the 290 of expert 3, and its last 90, below the smallest chunk, go to rank 2.
    let parts = spread(1.0, 100, &[0, 0, 1, 1, 2, 2], &[900, 0, 300, 290, 10, 0]);
    assert_eq!(parts[0], [(0, 500), (2, 400)]);
    assert_eq!(parts[2], [(1, 210), (2, 90)]);
    assert_eq!(parts[3], [(1, 290)]);
    assert_eq!(parts[4], [(2, 10)]);
}

#[test]
fn chunks_below_the_least_are_skipped() {
    // Cap 450; 550 spill. Rank 1 has room for 300, rank 2 for 250.
    let owners = [0, 1, 2];
    let pairs = [1000, 150, 200];
    assert_eq!(spread(1.0, 280, &owners, &pairs)[0], [(0, 450), (1, 300), (2, 250)]);
    // 300 is too small and not all: nobody takes anything, so the least loaded gets all, above its cap.
    assert_eq!(spread(1.0, 310, &owners, &pairs)[0], [(0, 450), (1, 550)]);
}

#[test]
fn what_is_left_goes_to_the_least_loaded() {
    // Cap 400; 800 spill. Rank 1 takes 300 and is full; 250 is too small a chunk for ranks 2 and 3, and 2 is the first of the two.
    let parts = spread(1.0, 260, &[0, 1, 2, 3], &[1200, 100, 150, 150]);
    assert_eq!(parts[0], [(0, 400), (1, 300), (2, 500)]);
}

#[test]
fn a_full_owner_spills_everything() {
    // Cap 225. The 300 pending of expert 1 fill rank 0: all of expert 0 goes, 225 fitting and 375 forced, to rank 1; then 75 more.
    let parts = spread(0.5, 1, &[0, 0, 1], &[600, 300, 0]);
    assert_eq!(parts[0], [(0, 0), (1, 600)]);
    assert_eq!(parts[1], [(0, 225), (1, 75)]);
    assert_eq!(parts[2], [(1, 0)]);
}

#[test]
fn nearly_balanced_experts_stay() {
    let at = |pairs: &[u32; 4]| Llep { min_chunk: 1, ..Llep::default() }.spread(pairs, &[0, 0, 1, 1], 2).unwrap();
    // Largest over mean 1.29: all stay, though rank 0 has 250 of 400 pairs. At 1.4 it gives up what passes its 200.
    assert_eq!(at(&[129, 121, 75, 75]), [[(0, 129)], [(0, 121)], [(1, 75)], [(1, 75)]]);
    assert_eq!(at(&[140, 90, 85, 85])[0], [(0, 110), (1, 30)]);
    assert_eq!(at(&[0; 4]).concat().len(), 4);
    let alone = Llep::default().spread(&[9, 1], &[0, 0], 1).unwrap();
    assert_eq!(alone, [[(0, 9)], [(0, 1)]]);
}

#[test]
fn knobs_out_of_range_are_refused() {
    for (alpha, lambda) in [(0.0, 1.3), (f64::NAN, 1.3), (f64::INFINITY, 1.3), (1.0, -1.0), (1.0, f64::NAN)] {
        assert!(Llep { alpha, lambda, ..Llep::default() }.spread(&[1, 2], &[0, 1], 2).is_err(), "{alpha} {lambda}");
    }
}
