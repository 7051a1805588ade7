//! timeline.json: one step of one layer rank by rank, in the Chrome trace format, for Perfetto or chrome://tracing.

use serde_json::{Value, json};

use crate::experiment::cell::{Cell, Event, Timeline};

/// A process for each policy and activation mode, in the first cell that has one; a thread for each rank.
pub(super) fn json(cells: &[Cell]) -> Value {
    let with_timelines = cells.iter().find(|cell| !cell.timelines.is_empty());
    let mut timelines: Vec<&Timeline> = Vec::new();
    for timeline in cells.iter().flat_map(|cell| &cell.timelines) {
        let same = |t: &&Timeline| (&t.policy, &t.activations) == (&timeline.policy, &timeline.activations);
        if !timelines.iter().any(same) {
            timelines.push(timeline);
        }
    }
    let events = timelines.into_iter().zip(1..).flat_map(|(timeline, process)| process_events(timeline, process));
    json!({
        "displayTimeUnit": "ms",
        "traceEvents": events.collect::<Vec<_>>(),
        "otherData": {
            "cell": with_timelines.map(|cell| &cell.key),
            "categories": {
                "measured": "executed and timed on this machine; plan: that times time_scale of the protocol",
                "modelled": "bytes of the plan over the links of the scaled cluster, at this machine's pace",
            },
        },
    })
}

fn process_events(timeline: &Timeline, process: u64) -> Vec<Value> {
    let name = format!("{}, {}", timeline.policy, timeline.activations);
    let labels = format!("step {}, layer {}", timeline.step, timeline.layer);
    let metadata = |thread: usize, name: &str, args: Value| json!({"ph": "M", "pid": process, "tid": thread, "name": name, "args": args});
    let mut events = vec![
        metadata(0, "process_name", json!({"name": name})),
        metadata(0, "process_labels", json!({"labels": labels})),
        metadata(0, "process_sort_index", json!({"sort_index": process})),
    ];
    let ranks: std::collections::BTreeSet<usize> = timeline.events.iter().map(|event| event.rank).collect();
    for rank in ranks {
        events.push(metadata(rank, "thread_name", json!({"name": format!("rank {rank}")})));
        events.push(metadata(rank, "thread_sort_index", json!({"sort_index": rank})));
    }
    events.extend(timeline.events.iter().map(|event| duration(event, process)));
    events
}

/// Times of this format are in microseconds.
fn duration(event: &Event, process: u64) -> Value {
    json!({
        "ph": "X", "pid": process, "tid": event.rank, "name": event.name, "cat": event.source,
        "ts": 1e6 * event.start_s, "dur": 1e6 * event.seconds,
        "args": {"rows": event.rows, "source": event.source},
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::cell;
    use super::*;

    fn trace() -> Value {
        let text = json(&[cell(1), cell(2)]).to_string();
        serde_json::from_str(&text).unwrap()
    }

    fn of_kind<'a>(trace: &'a Value, ph: &'a str) -> impl Iterator<Item = &'a Value> {
        trace["traceEvents"].as_array().unwrap().iter().filter(move |event| event["ph"] == ph)
    }

    #[test]
    fn processes_are_policies_and_threads_are_ranks() {
        let trace = trace();
        let names = |kind: &str| {
            of_kind(&trace, "M")
                .filter(|event| event["name"] == kind)
                .map(|event| (event["pid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names("process_name"), [(1, "symi, stash".to_owned()), (2, "lrmoe, recompute".to_owned())]);
        let rank = |process, rank: &str| (process, rank.to_owned());
        let expected = [rank(1, "rank 0"), rank(1, "rank 1"), rank(2, "rank 0"), rank(2, "rank 1")];
        assert_eq!(names("thread_name"), expected);
        assert_eq!(trace["otherData"]["cell"]["seed"], 1);
    }

    #[test]
    fn events_are_in_microseconds_and_those_of_a_rank_do_not_overlap() {
        let trace = trace();
        let events: Vec<&Value> = of_kind(&trace, "X").collect();
        assert_eq!(events.len(), 12);
        assert!(events.iter().all(|e| matches!(e["cat"].as_str(), Some("measured" | "modelled"))));
        let last = events[5];
        assert_eq!((&last["name"], &last["args"]["rows"]), (&json!("forward"), &json!(11)));
        assert!((last["ts"].as_f64().unwrap() - 3000.0).abs() < 1e-6);
        assert!((last["dur"].as_f64().unwrap() - 7000.0).abs() < 1e-6);
        for process in 1..=2 {
            for rank in 0..2 {
                let own = events.iter().filter(|e| e["pid"] == process && e["tid"] == rank);
                let mut spans: Vec<(f64, f64)> =
                    own.map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap())).collect();
                spans.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert_eq!(spans.len(), 3);
                assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0 + 1e-6), "{spans:?}");
            }
        }
    }

    #[test]
    fn without_cells_there_are_no_events() {
        assert_eq!(json(&[])["traceEvents"], json!([]));
    }
}
