use super::*;
use crate::Error;

/// An empty directory of this test, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lrmoe-tuning-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).map(|all| all.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CANDIDATES: [(&str, u64); 3] = [("a", 30), ("b", 10), ("c", 20)];

fn milliseconds(value: u64) -> Result<Duration> {
    Ok(Duration::from_millis(value))
}

fn never(_: u64) -> Result<Duration> {
    panic!("measured again")
}

fn alone(measures: bool, directory: Option<&Path>, identity: &str) -> Tuner {
    Tuner::new(measures, directory, identity, Arc::default())
}

#[test]
fn the_fastest_is_chosen_once_and_kept() {
    let directory = Directory::new("kept");
    let tuner = alone(true, Some(&directory.0), "card, driver 1");
    assert_eq!(tuner.choose("x", &CANDIDATES, milliseconds), Some(10));
    assert_eq!(tuner.choose("x", &CANDIDATES, never), Some(10));
    assert_eq!(tuner.choose("y", &CANDIDATES[..1], never), Some(30));
    assert_eq!(directory.files().len(), 1);

    let again = alone(true, Some(&directory.0), "card, driver 1");
    assert_eq!(again.choose("x", &CANDIDATES, never), Some(10));
    let chosen = ChosenVariant { what: "x".into(), variant: "b".into(), source: ChoiceSource::Measured };
    assert_eq!(again.chosen(), [chosen]);
    // A variant that is not there any more, or not on such shapes, is measured anew.
    assert_eq!(again.choose("x", &[("a", 30), ("d", 40)], milliseconds), Some(30));
    let updated = alone(true, Some(&directory.0), "card, driver 2");
    assert_eq!(updated.choose("x", &CANDIDATES, milliseconds), Some(10));
    assert_eq!(directory.files().len(), 2);
}

#[test]
fn without_measuring_the_first_is_the_choice() {
    let directory = Directory::new("off");
    let tuner = alone(false, Some(&directory.0), "card");
    assert_eq!(tuner.choose("x", &CANDIDATES, never), Some(30));
    assert_eq!(tuner.choose("x", &CANDIDATES[..0], never), None);
    assert_eq!(tuner.chosen()[0].source, ChoiceSource::Default);
    assert!(directory.files().is_empty());
}

#[test]
fn what_cannot_be_measured_is_not_chosen() {
    let tuner = alone(true, Some(Path::new("/dev/null/nowhere")), "card");
    let fails = |value| if value == 10 { Err(Error::argument("x", 1, "2")) } else { milliseconds(value) };
    assert_eq!(tuner.choose("x", &CANDIDATES, fails), Some(20));
    let all_fail = |_| Err(Error::argument("x", 1, "2"));
    assert_eq!(tuner.choose("y", &CANDIDATES, all_fail), Some(30));
    assert_eq!(tuner.choose("y", &CANDIDATES, never), Some(30));
}

#[test]
fn a_spoilt_file_is_ignored_and_rewritten() {
    let directory = Directory::new("spoilt");
    std::fs::create_dir_all(&directory.0).unwrap();
    let file = ChoiceFile::new(&directory.0, "card");
    let foreign = serde_json::to_vec(&Content { identity: "other".into(), choices: [("x".into(), "a".into())].into() });
    for spoilt in [b"{\"identity\": \"lrm".to_vec(), b"\xff\xfe".to_vec(), Vec::new(), foreign.unwrap()] {
        std::fs::write(&file.path, spoilt).unwrap();
        let tuner = alone(true, Some(&directory.0), "card");
        assert_eq!(tuner.choose("x", &CANDIDATES, milliseconds), Some(10));
        assert_eq!(file.read(), [("x".to_owned(), "b".to_owned())].into());
        assert_eq!(directory.files().len(), 1);
    }
}

#[test]
fn backends_of_one_device_share_what_was_found() {
    let first = alone(true, Some(Path::new("/dev/null/nowhere")), "card");
    let beside = |measures| Tuner::new(measures, Some(Path::new("/dev/null/nowhere")), "card", first.findings());
    let (second, plain) = (beside(true), beside(false));
    assert_eq!(plain.choose("x", &CANDIDATES, never), Some(30));
    // Neither a default nor its absence is the other's business.
    assert_eq!(first.choose("x", &CANDIDATES, milliseconds), Some(10));
    assert_eq!(second.choose("x", &CANDIDATES, never), Some(10));
    assert_eq!(plain.choose("x", &CANDIDATES, never), Some(30));
    assert_eq!(plain.chosen()[0].source, ChoiceSource::Default);
    assert!(first.tested("units", || Ok(true)) && second.tested("units", || panic!("tested again")));
    assert!(!second.tested("others", || Err(Error::argument("x", 1, "2"))) && !plain.tested("others", || Ok(true)));
}

#[test]
fn backends_of_one_device_read_files_of_their_own() {
    let directory = Directory::new("beside");
    assert_eq!(alone(true, Some(&directory.0), "card").choose("x", &CANDIDATES, milliseconds), Some(10));
    let first = alone(true, Some(Path::new("/dev/null/nowhere")), "card");
    assert_eq!(first.choose("y", &CANDIDATES, milliseconds), Some(10));
    let second = Tuner::new(true, Some(&directory.0), "card", first.findings());
    assert_eq!(second.choose("x", &CANDIDATES, never), Some(10));
}
