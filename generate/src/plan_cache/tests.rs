use std::time::Duration;

use ixc_architectures::Parts;
use ixc_compile::compile::{CompileOptions, compile};
use ixc_compile::model::{Model, open_files};
use tempfile::TempDir;

use super::*;

/// A cache in a new folder, and a model in a file.
struct Scratch {
    folder: TempDir,
    model: PathBuf,
    plan: Plan<Kernel>,
}

impl Scratch {
    fn new() -> Scratch {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        fs::write(&model, ixc_compile::demo::bytes()).unwrap();
        let plan = compile(&Model::open(&model).unwrap(), &CompileOptions::default()).unwrap().plan;
        Scratch { folder, model, plan }
    }

    fn cache(&self, limit: Option<u64>) -> PlanCache {
        PlanCache::new(self.folder.path().join("plans"), limit)
    }

    fn key(&self, options: &CompileOptions) -> PlanKey {
        let files = open_files(&self.model).unwrap();
        ModelKey::new(&files, Parts::ALL, options).unwrap().unwrap().with(Residency::Resident)
    }

    fn keys(&self, count: u32) -> Vec<PlanKey> {
        (1..=count)
            .map(|tokens| self.key(&CompileOptions { max_tokens: Some(tokens), ..CompileOptions::default() }))
            .collect()
    }

    fn write(&self, cache: &PlanCache, key: &PlanKey) {
        cache.write(key, &self.plan, Record::new(&self.model, &self.plan, 7, 0));
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("plans")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn written_plan_is_read_back() {
    let scratch = Scratch::new();
    let (cache, key) = (scratch.cache(None), scratch.key(&CompileOptions::default()));
    assert!(cache.find(&key).is_none() && cache.list().unwrap().is_empty() && cache.collect().unwrap() == (0, 0));
    scratch.write(&cache, &key);
    scratch.write(&cache, &key);
    let record = cache.find(&key).unwrap();
    assert_eq!((record.model.as_path(), record.min_expert_bytes), (&*scratch.model, 7));
    assert_eq!(cache.read(&key).unwrap(), scratch.plan);
    let id = key.id();
    assert_eq!(scratch.names(), [format!("{id}.ixp"), format!("{id}.json"), "lock".to_owned()]);
    assert_eq!(cache.collect().unwrap(), (0, 0));
    let entries = cache.list().unwrap();
    assert_eq!((entries.len(), &entries[0].id), (1, &id));
    assert_eq!(cache.remove(&entries).unwrap(), entries[0].bytes);
    assert_eq!(scratch.names(), ["lock"]);
}

#[test]
fn key_has_everything_that_a_plan_depends_on() {
    let scratch = Scratch::new();
    let key = || scratch.key(&CompileOptions::default());
    let first = key();
    assert_eq!(key(), first);
    let target = Some(ixc_targets::Target::PORTABLE);
    for options in [
        CompileOptions { target, ..CompileOptions::default() },
        CompileOptions { max_tokens: Some(7), ..CompileOptions::default() },
        CompileOptions { pack: Some(false), ..CompileOptions::default() },
        CompileOptions { predict_extra: Some(1), ..CompileOptions::default() },
        CompileOptions { defer: 1, ..CompileOptions::default() },
    ] {
        assert_ne!(scratch.key(&options).id(), first.id(), "{options:?}");
    }
    // A moved model keeps its plans. A model that was written again gets a new key.
    let moved = scratch.folder.path().join("moved.gguf");
    fs::rename(&scratch.model, &moved).unwrap();
    fs::rename(&moved, &scratch.model).unwrap();
    assert_eq!(key(), first);
    let file = fs::File::options().write(true).open(&scratch.model).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    assert_ne!(key(), first);
    let files = ixc_compile::demo::open().unwrap();
    assert_eq!(ModelKey::new(&files, Parts::ALL, &CompileOptions::default()).unwrap(), None);
}

#[test]
fn damaged_entry_is_removed_and_written_again() {
    let scratch = Scratch::new();
    let (cache, key) = (scratch.cache(None), scratch.key(&CompileOptions::default()));
    for extension in [PLAN, RECORD] {
        scratch.write(&cache, &key);
        let path = cache.path(&key.id(), extension);
        let whole = fs::read(&path).unwrap();
        for damaged in
            [whole[..whole.len() / 2].to_vec(), Vec::new(), [&whole[..40], &[!whole[40]], &whole[41..]].concat()]
        {
            scratch.write(&cache, &key);
            fs::write(&path, damaged).unwrap();
            let read = cache.find(&key).and_then(|_| cache.read(&key));
            assert!(read.is_none(), "{extension}");
            assert_eq!(scratch.names(), ["lock"]);
        }
        // Without its plan, a record is of no use.
        scratch.write(&cache, &key);
        fs::remove_file(&path).unwrap();
        scratch.write(&cache, &key);
        assert_eq!(cache.read(&key).unwrap(), scratch.plan);
    }
}

#[test]
fn plans_that_were_not_used_for_the_longest_time_are_removed() {
    let scratch = Scratch::new();
    let keys = scratch.keys(4);
    let cache = scratch.cache(None);
    let at = |age: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
    for (age, key) in (0..).zip(&keys[..3]) {
        scratch.write(&cache, key);
        let file = fs::File::options().write(true).open(cache.path(&key.id(), PLAN)).unwrap();
        file.set_modified(at(age)).unwrap();
    }
    let bytes = cache.list().unwrap()[0].bytes;
    // Reading the oldest plan makes it the last used one.
    assert!(cache.read(&keys[2]).is_some());
    let small = scratch.cache(Some(3 * bytes + bytes / 2));
    scratch.write(&small, &keys[3]);
    let left: Vec<String> = small.list().unwrap().into_iter().map(|entry| entry.id).collect();
    assert_eq!(left.len(), 3);
    assert!(!left.contains(&keys[1].id()), "{left:?}");
    let smaller = scratch.cache(Some(bytes + bytes / 2));
    assert_eq!(smaller.collect().unwrap(), (2, 2 * bytes));
    // A plan that the limit does not allow is not written.
    scratch.write(&scratch.cache(Some(bytes / 2)), &keys[0]);
    assert!(cache.find(&keys[0]).is_none() && cache.list().unwrap().len() == 1);
}

#[test]
fn collecting_removes_remains_and_no_file_of_others() {
    let scratch = Scratch::new();
    let (cache, key) = (scratch.cache(None), scratch.key(&CompileOptions::default()));
    scratch.write(&cache, &key);
    let own = scratch.names();
    let others = ["0123456789abcdef.txt", "model.ixp", "notes.json", ".other.part"];
    let remains = [".0123456789abcdef.ixp.ab12.part", "0123456789abcdef.json", "fedcba9876543210.ixp"];
    for name in others.iter().chain(&remains) {
        fs::write(cache.folder().join(name), "x").unwrap();
    }
    cache.collect().unwrap();
    let mut left: Vec<String> = own.into_iter().chain(others.map(str::to_owned)).collect();
    left.sort();
    assert_eq!(scratch.names(), left);
}

#[test]
fn threads_and_processes_share_a_folder() {
    let scratch = Scratch::new();
    let (cache, keys) = (scratch.cache(None), scratch.keys(3));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| keys.iter().for_each(|key| scratch.write(&cache, key)));
        }
    });
    assert_eq!(cache.list().unwrap().len(), 3);
    assert!(keys.iter().all(|key| cache.read(key).unwrap() == scratch.plan));
    // A folder that others can write to is not trusted.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(cache.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let other = scratch.key(&CompileOptions { defer: 1, ..CompileOptions::default() });
    scratch.write(&cache, &other);
    assert!(cache.find(&other).is_none());
}
