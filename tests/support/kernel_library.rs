//! Kernels compiled for the CPU: C++ units and the engine of `tests/shim`, linked once for each state of their sources.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::outcome::text;

/// Compilers that run at once.
const JOBS: usize = 2;

/// Sources of the engine, in `tests/shim`.
const ENGINE: &[&str] = &["copies", "faults", "launch", "shim", "warp"];

/// What looks at the kernels while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sanitizer {
    /// Only the engine: deadlocks, misaligned addresses, faults.
    None,
    /// Races.
    Thread,
    /// Bounds.
    Address,
}

/// A file to compile: kernels and what registers them, or a `main`.
#[derive(Debug, Clone)]
pub struct Unit {
    /// For messages.
    pub name: String,
    /// C++ text.
    pub text: String,
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    Library,
    Program,
}

impl Sanitizer {
    /// The one that `LRMOE_FAKE_CUDA_SANITIZER` asks for.
    ///
    /// # Errors
    /// That there is none of this name.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var("LRMOE_FAKE_CUDA_SANITIZER").as_deref() {
            Err(_) | Ok("") => Ok(Self::None),
            Ok("thread") => Ok(Self::Thread),
            Ok("address") => Ok(Self::Address),
            Ok(other) => Err(format!("LRMOE_FAKE_CUDA_SANITIZER is `{other}`, neither `thread` nor `address`")),
        }
    }

    /// Flags for kernels.
    fn kernels(self) -> &'static [&'static str] {
        match self {
            Self::None => &["-O2", "-g1", "-fsanitize=alignment"],
            Self::Thread => &["-O1", "-g", "-fsanitize=thread"],
            Self::Address => &["-O1", "-g", "-fsanitize=address,alignment"],
        }
    }

    /// Flags for the engine, which is never instrumented.
    fn engine(self) -> &'static [&'static str] {
        match self {
            Self::None => &["-O2", "-g1"],
            Self::Thread => &["-O2", "-g", "-DSHIM_TSAN"],
            Self::Address => &["-O2", "-g", "-DSHIM_ASAN"],
        }
    }

    fn link(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Thread => &["-fsanitize=thread"],
            Self::Address => &["-fsanitize=address"],
        }
    }
}

/// The directory of this crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compiler() -> String {
    ["LRMOE_CXX", "CXX"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_else(|| "g++".into())
}

/// Its version; the reason where it is not there.
fn version() -> Result<String, String> {
    let compiler = compiler();
    let output = Command::new(&compiler).arg("--version").output();
    let output = output.map_err(|error| format!("no C++ compiler: {compiler}: {error}; LRMOE_CXX can name one"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Flags for every file. A sum and a product are rounded one by one, as NVRTC is told too.
fn common() -> Vec<String> {
    let flags = [
        "-std=c++17",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-ffp-contract=off",
        "-fstack-clash-protection",
    ];
    let mut flags: Vec<String> = flags.map(Into::into).into();
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        flags.extend(["-mavx2", "-mfma"].map(Into::into));
    }
    for directory in ["tests/shim", "cuda"] {
        flags.push(format!("-I{}", root().join(directory).display()));
    }
    flags
}

/// Every file of a directory with one of these endings, in order.
fn files(directory: &str, endings: &[&str]) -> Result<Vec<PathBuf>, String> {
    let directory = root().join(directory);
    let entries = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(text)?.path();
        if path.extension().is_some_and(|ending| endings.iter().any(|&known| ending == known)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Text of the headers that any unit may use, and of the files that this one includes.
fn read_by(unit: &str) -> Result<String, String> {
    let mut all = String::new();
    for path in files("cuda", &["h"])?.into_iter().chain(files("tests/shim", &["h"])?) {
        all.push_str(&read(&path)?);
    }
    for line in unit.lines() {
        let name = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let Some(name) = name.filter(|name| name.ends_with(".cu")) else { continue };
        let path = ["cuda", "tests/shim"].map(|directory| root().join(directory).join(name));
        all.push_str(&path.iter().find(|path| path.exists()).map_or(Ok(String::new()), |path| read(path))?);
    }
    Ok(all)
}

fn hash(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Where it all lies.
fn directory() -> Result<PathBuf, String> {
    let base = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = base.join("kernels-for-cpu");
    std::fs::create_dir_all(&directory).map_err(text)?;
    Ok(directory)
}

fn run(mut command: Command, what: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{what} does not compile for the CPU:\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// One object to make.
struct Task {
    what: String,
    source: PathBuf,
    object: PathBuf,
    flags: Vec<String>,
}

impl Task {
    fn run(&self, number: usize) -> Result<(), String> {
        let fresh = self.object.with_extension(format!("{}-{number}.new", std::process::id()));
        let mut command = Command::new(compiler());
        command.args(&self.flags).arg("-c").arg(&self.source).arg("-o").arg(&fresh);
        run(command, &self.what)?;
        std::fs::rename(&fresh, &self.object).map_err(text)
    }
}

/// Compiles and links, what has not been yet.
///
/// # Errors
/// Why it cannot be done: no compiler, or what it says.
pub fn build(units: &[Unit], sanitizer: Sanitizer, output: Output) -> Result<PathBuf, String> {
    let (version, directory) = (version()?, directory()?);
    let mut objects = Vec::new();
    let mut tasks = Vec::new();
    let mut object =
        |what: &str, unit: &str, flags: &[&str], inputs: &str, source: Option<PathBuf>| -> Result<(), String> {
            let flags: Vec<String> = common().into_iter().chain(flags.iter().map(|&flag| flag.to_owned())).collect();
            let name = hash((unit, inputs, &flags, &version));
            let object = directory.join(format!("{name}.o"));
            objects.push((name.clone(), object.clone()));
            if object.exists() {
                return Ok(());
            }
            let source = match source {
                Some(source) => source,
                None => {
                    let source = directory.join(format!("{name}.cpp"));
                    let fresh = directory.join(format!("{name}-{}.new", std::process::id()));
                    std::fs::write(&fresh, unit).map_err(text)?;
                    std::fs::rename(&fresh, &source).map_err(text)?;
                    source
                }
            };
            tasks.push(Task { what: what.to_owned(), source, object, flags });
            Ok(())
        };
    for unit in units {
        object(&unit.name, &unit.text, sanitizer.kernels(), &read_by(&unit.text)?, None)?;
    }
    for name in ENGINE {
        let source = root().join("tests/shim").join(name).with_extension("cpp");
        let unit = read(&source)?;
        object(name, &unit, sanitizer.engine(), &read_by(&unit)?, Some(source))?;
    }
    // Whoever comes later waits for the first and finds its objects.
    let lock = std::fs::File::create(directory.join("lock")).map_err(text)?;
    lock.lock().map_err(text)?;
    compile(&tasks)?;
    let names: Vec<&str> = objects.iter().map(|(name, _)| name.as_str()).collect();
    let ending = if output == Output::Library { "so" } else { "bin" };
    let linked = directory.join(format!("{}.{ending}", hash((&names, sanitizer, output))));
    if !linked.exists() {
        let fresh = directory.join(format!("link-{}.new", std::process::id()));
        let mut command = Command::new(compiler());
        command.args((output == Output::Library).then_some("-shared")).arg("-pthread").args(sanitizer.link());
        command.arg("-o").arg(&fresh).args(objects.iter().map(|(_, object)| object));
        run(command, "what has been compiled")?;
        std::fs::rename(&fresh, &linked).map_err(text)?;
    }
    Ok(linked)
}

fn compile(tasks: &[Task]) -> Result<(), String> {
    let next = Mutex::new(tasks.iter().filter(|task| !task.object.exists()));
    let work = |number: usize| -> Result<(), String> {
        loop {
            let task = next.lock().map_err(text)?.next();
            let Some(task) = task else { return Ok(()) };
            task.run(number)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS).map(|number| scope.spawn(move || work(number))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| "a compiler's thread panicked".to_owned())?)
    })
}
