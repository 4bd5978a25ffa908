//! Libraries of functions (FUNCTION LOAD), and what a thread has compiled of them.
//!
//! A library is a text that gives its own name (`#!lua name=...`) and registers its functions when it is run. Each
//! thread runs the text itself before it first calls one of the functions, so each thread has its own copy of the
//! library's variables.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mlua::{Table, Value};
use parking_lot::RwLock;

use crate::answer::one_line;
use crate::interpreter::{Interpreter, error_text};
use crate::releases::Releases;
use crate::script::{ScriptFlags, Shebang};

/// One function of a library.
#[derive(Debug)]
pub struct Function {
    /// The name by which clients call it, in upper or lower case.
    pub name: String,
    /// The description that the library gives of it.
    pub description: Option<Vec<u8>>,
    /// The flags that it was registered with.
    pub flags: ScriptFlags,
    /// How long it took in the mean of its last runs, if that was noted.
    pub mean_nanos: AtomicU64,
}

/// A library.
#[derive(Debug)]
pub struct Library {
    id: u64,
    /// Its name.
    pub name: String,
    /// Its whole text.
    pub code: Box<[u8]>,
    /// Its functions, in the order in which they were registered.
    pub functions: Vec<Function>,
    /// One of them has used undeclared keys.
    pub has_undeclared_keys: AtomicBool,
    /// It was not deleted or replaced.
    live: AtomicBool,
}

impl Library {
    /// The memory of the library in bytes, without its compiled form in Lua.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let functions = self.functions.iter().map(|function| function.name.len() + size_of::<Function>());
        size_of::<Self>() + self.name.len() + self.code.len() + functions.sum::<usize>()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }
}

/// Why a library was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError(String);

impl FunctionError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Display for FunctionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ERR {}", self.0)
    }
}

impl std::error::Error for FunctionError {}

/// The libraries of a server.
#[derive(Debug, Default)]
pub struct Functions {
    loaded: RwLock<Loaded>,
    pub(crate) releases: Releases,
}

#[derive(Debug, Default, Clone)]
struct Loaded {
    libraries: BTreeMap<String, Arc<Library>>,
    /// The library of each function and the index in it, by the function's name in lower case.
    functions: HashMap<String, (Arc<Library>, usize)>,
}

impl Loaded {
    fn add(&mut self, library: Library, replace: bool) -> Result<(), FunctionError> {
        if let Some(old) = self.libraries.get(&library.name) {
            if !replace {
                return Err(FunctionError::new(format!("Library '{}' already exists", library.name)));
            }
            let old = old.clone();
            self.remove(&old);
        }
        let taken = |function: &&Function| self.functions.contains_key(&function.name.to_lowercase());
        if let Some(function) = library.functions.iter().find(taken) {
            return Err(FunctionError::new(format!("Function {} already exists", function.name)));
        }
        let library = Arc::new(library);
        for (place, function) in library.functions.iter().enumerate() {
            self.functions.insert(function.name.to_lowercase(), (library.clone(), place));
        }
        self.libraries.insert(library.name.clone(), library);
        Ok(())
    }

    fn remove(&mut self, library: &Library) {
        self.libraries.remove(&library.name);
        for function in &library.functions {
            self.functions.remove(&function.name.to_lowercase());
        }
    }
}

/// The policy of FUNCTION RESTORE for the existing libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// They stay; a library with the name of one is an error.
    Append,
    /// They stay, unless a library with the same name replaces them.
    Replace,
    /// They are removed.
    Flush,
}

impl Functions {
    /// The function of this name, in any case: its library and its place in that.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        let name = std::str::from_utf8(name).ok()?;
        let loaded = self.loaded.read();
        match loaded.functions.get(name) {
            Some(found) => Some(found.clone()),
            None => loaded.functions.get(&name.to_lowercase()).cloned(),
        }
    }

    /// Adds a library; with `replace` in place of one of the same name.
    ///
    /// # Errors
    /// A library of its name exists, or another library has a function with the name of one of its functions.
    pub fn add(&self, library: Library, replace: bool) -> Result<(), FunctionError> {
        self.add_all(vec![library], if replace { Restore::Replace } else { Restore::Append })
    }

    /// Adds some libraries, or none of them.
    ///
    /// # Errors
    /// As of [`Functions::add`].
    pub fn add_all(&self, libraries: Vec<Library>, how: Restore) -> Result<(), FunctionError> {
        let mut loaded = self.loaded.write();
        let mut next = if how == Restore::Flush { Loaded::default() } else { loaded.clone() };
        libraries.into_iter().try_for_each(|library| next.add(library, how == Restore::Replace))?;
        let before = std::mem::replace(&mut *loaded, next);
        let is_loaded = |library: &Arc<Library>| {
            loaded.libraries.get(&library.name).is_some_and(|now| Arc::ptr_eq(now, library))
        };
        let released: Vec<_> = before.libraries.values().filter(|library| !is_loaded(library)).collect();
        self.release(&released);
        Ok(())
    }

    /// Has the threads forget the compiled forms of libraries that are no longer loaded.
    fn release(&self, libraries: &[&Arc<Library>]) {
        for library in libraries {
            library.live.store(false, Ordering::Release);
            self.releases.note(library.code.len());
        }
    }

    /// Removes a library; says whether it was there.
    pub fn remove(&self, name: &[u8]) -> bool {
        let mut loaded = self.loaded.write();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let Some(library) = loaded.libraries.get(name).cloned() else { return false };
        loaded.remove(&library);
        drop(loaded);
        self.release(&[&library]);
        true
    }

    /// Removes all.
    pub fn flush(&self) {
        let before = std::mem::take(&mut *self.loaded.write());
        self.release(&before.libraries.values().collect::<Vec<_>>());
        drop(before);
        self.releases.announce();
    }

    /// The libraries in the order of their names.
    #[must_use]
    pub fn libraries(&self) -> Vec<Arc<Library>> {
        self.loaded.read().libraries.values().cloned().collect()
    }

    /// Bytes that the libraries take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.loaded.read().libraries.values().map(|library| library.bytes()).sum()
    }

    /// How many functions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.loaded.read().functions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The name that a library's first line gives it, and where its text begins.
fn metadata(code: &[u8]) -> Result<(String, &[u8]), FunctionError> {
    let invalid = || FunctionError::new("Invalid library metadata");
    let shebang = Shebang::parse(code).map_err(|_| invalid())?;
    let Some(shebang) = shebang else { return Err(FunctionError::new("Missing library metadata")) };
    let mut name = None;
    for option in shebang.options {
        let given = option.split_at_checked(5).filter(|(key, _)| key.eq_ignore_ascii_case(b"name="));
        let Some((_, given)) = given else {
            let shown = String::from_utf8_lossy(&option);
            return Err(FunctionError::new(format!("Invalid metadata value given: {shown}")));
        };
        if name.replace(given.to_vec()).is_some() {
            return Err(FunctionError::new("Invalid metadata value, name argument was given multiple times"));
        }
    }
    let Some(name) = name else { return Err(FunctionError::new("Library name was not given")) };
    if !is_name(&name) {
        return Err(FunctionError::new(
            "Library names can only contain letters, numbers, or underscores(_) and must be at least one character \
             long",
        ));
    }
    if !shebang.engine.eq_ignore_ascii_case(b"lua") {
        let engine = String::from_utf8_lossy(&shebang.engine);
        return Err(FunctionError::new(format!("Engine '{engine}' not found")));
    }
    Ok((String::from_utf8_lossy(&name).into_owned(), shebang.body))
}

impl Interpreter {
    /// Runs a library's text to learn its functions. `hurried`: with the timeout for libraries that clients load.
    ///
    /// # Errors
    /// The text is no library, or fails.
    pub fn load_library(&mut self, code: &[u8], hurried: bool) -> Result<Library, FunctionError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (name, _) = metadata(code)?;
        // The compiled form is not kept: the library may be refused by its name, or never be called on this thread.
        let (_, registered) = self.run_library(code, hurried)?;
        let functions = describe_all(&registered)?;
        if functions.is_empty() {
            return Err(FunctionError::new("No functions registered"));
        }
        Ok(Library {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            code: code.into(),
            functions,
            has_undeclared_keys: AtomicBool::new(false),
            live: AtomicBool::new(true),
        })
    }

    /// Runs a library's text unless this thread has done that.
    ///
    /// # Errors
    /// It fails here, though it ran elsewhere: memory is short.
    pub fn compile_library(&mut self, library: &Arc<Library>) -> Result<(), FunctionError> {
        if self.known_libraries.contains_key(&library.id) {
            return Ok(());
        }
        let (world, registered) = self.run_library(&library.code, false)?;
        self.keep_library(library, &world, &registered).map_err(|error| internal(&error))
    }

    /// Drops the compiled forms of libraries that are no longer loaded.
    pub(crate) fn forget_libraries(&mut self) {
        let libraries = &self.libraries;
        for (id, _) in self.known_libraries.extract_if(|_, library| !library.is_live()) {
            // Nothing is allocated for a `nil`, so this cannot fail.
            let _ = libraries.raw_set(id, Value::Nil);
        }
    }

    /// Runs a library's text in a world of its own; returns that and the functions it registers.
    fn run_library(&mut self, code: &[u8], hurried: bool) -> Result<(Table, Table), FunctionError> {
        let (_, body) = metadata(code)?;
        let world: Table = self.library_world.call(()).map_err(|error| internal(&error))?;
        let environment: Table = world.raw_get("env").map_err(|error| internal(&error))?;
        let chunk = self
            .compile_text(body, &environment, "@user_function")
            .map_err(|text| FunctionError::new(format!("Error compiling function: {text}")))?;
        let failed = |text: &str| FunctionError::new(format!("Error registering functions: {text}"));
        match self.run_loading(&world, &chunk, hurried).map_err(|text| failed(&text))? {
            (true, Value::Table(registered)) => Ok((world, registered)),
            (false, Value::Table(error)) => Err(failed(&String::from_utf8_lossy(&error_text(&error)))),
            (_, _) => Err(FunctionError::new("Error registering functions")),
        }
    }

    /// Keeps the functions of a library by their names, and its globals.
    fn keep_library(
        &mut self,
        library: &Arc<Library>,
        world: &Table,
        registered: &Table,
    ) -> mlua::Result<()> {
        let by_name = self.empty_table()?;
        for entry in registered.sequence_values::<Table>() {
            let entry = entry?;
            by_name.raw_set(entry.raw_get::<Value>("name")?, entry.raw_get::<Value>("callback")?)?;
        }
        world.raw_set("functions", by_name)?;
        self.libraries.raw_set(library.id, world)?;
        self.known_libraries.insert(library.id, library.clone());
        Ok(())
    }
}

fn internal(error: &mlua::Error) -> FunctionError {
    let text = one_line(error.to_string().lines().next().unwrap_or_default().as_bytes(), true);
    FunctionError::new(String::from_utf8_lossy(&text))
}

/// Returns the functions that a library registered.
fn describe_all(registered: &Table) -> Result<Vec<Function>, FunctionError> {
    let mut functions: Vec<Function> = Vec::new();
    let mut names = HashSet::new();
    for entry in registered.sequence_values::<Table>() {
        let entry = entry.map_err(|error| internal(&error))?;
        let name: mlua::LuaString = entry.raw_get("name").map_err(|error| internal(&error))?;
        let name = name.as_bytes();
        if !is_name(&name) {
            return Err(FunctionError::new(
                "Function names can only contain letters, numbers, or underscores(_) and must be at least one \
                 character long",
            ));
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        if !names.insert(name.clone()) {
            return Err(FunctionError::new("Function already exists in the library"));
        }
        functions.push(describe(name, &entry).map_err(|error| internal(&error))?);
    }
    Ok(functions)
}

/// Reads the entry that the prelude made for one function.
fn describe(name: String, entry: &Table) -> mlua::Result<Function> {
    let mut flags = ScriptFlags { declared: true, ..ScriptFlags::default() };
    for flag in entry.raw_get::<Table>("flags")?.sequence_values::<mlua::LuaString>() {
        flags.set(&flag?.as_bytes());
    }
    let description: Option<mlua::LuaString> = entry.raw_get("description")?;
    let description = description.map(|text| text.as_bytes().to_vec());
    Ok(Function { name, description, flags, mean_nanos: AtomicU64::new(0) })
}

/// Whether a library or a function may be called so.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}
