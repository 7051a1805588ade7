//! Traffic read from loads alone is that of the routes.

use super::super::counts::Counts;
use super::super::mode::Ownership;
use super::super::route::tests::{loads, problem};
use super::super::route::transport;
use super::*;
use crate::rng::Philox;

#[test]
fn loads_and_routes_tell_the_same() {
    let mut rng = Philox::new(61, 0);
    for round in 0..3000 {
        let (sources, placement) =
            if round % 100 == 0 { problem(&mut rng, 512, 64, 9) } else { problem(&mut rng, 10, 10, 9) };
        let loads = loads(&mut rng, &sources, &placement);
        let routes = transport(&sources, &placement, &loads).unwrap();
        let ranks = sources.counts().ranks();
        let of_routes = Traffic::of_routes(&routes, ranks, sources.ranks_per_node()).unwrap();
        assert_eq!(traffic(&sources, &placement, &loads).unwrap(), of_routes);
        assert_eq!(of_routes.rows.iter().sum::<u64>(), sources.counts().total());
        assert_eq!(of_routes.crossing_ranks(), of_routes.received.iter().sum::<u64>());
        assert_eq!(of_routes.crossing_nodes(), of_routes.node_received.iter().sum::<u64>());
    }
}

#[test]
fn counts_by_hand() {
    // Ranks 0, 1 | 2: expert 0 on rank 1, expert 1 on ranks 0 and 2.
    let counts = Counts::new(&[[3, 2], [1, 2], [2, 4]]).unwrap();
    let placement = Placement::new(3, &[vec![1], vec![0, 2]], vec![1, 0], Ownership::Home).unwrap();
    let sources = Sources::new(counts, 2).unwrap();
    let expected = Traffic {
        rows: vec![3, 6, 5],
        received: vec![1, 5, 1],
        sent: vec![3, 2, 2],
        node_received: vec![2, 1],
        node_sent: vec![1, 2],
    };
    assert_eq!(traffic(&sources, &placement, &[6, 3, 5]).unwrap(), expected);
}

#[test]
fn refuses_what_does_not_add_up() {
    let counts = Counts::new(&[[6, 1], [4, 3]]).unwrap();
    let placement = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home).unwrap();
    let sources = Sources::new(counts, 1).unwrap();
    let error = traffic(&sources, &placement, &[4, 5, 4]).unwrap_err().to_string();
    assert!(error.contains("loads of expert 0") && error.contains("in all 9") && error.contains("10"), "{error}");
    assert!(matches!(traffic(&sources, &placement, &[10]), Err(Error::Shape { .. })));
    let route = Route { expert: 0, from: 0, to: 2, pairs: 1 };
    assert!(Traffic::of_routes(&[route], 2, 1).unwrap_err().to_string().contains("ranks below 2"));
    assert!(Traffic::of_routes(&[], 0, 1).is_err() && Traffic::of_routes(&[], 1, 0).is_err());
}
