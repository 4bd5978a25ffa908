//! Function libraries (FUNCTION LOAD) and their compiled forms in each thread.
//!
//! A library is a text that names itself (`#!lua name=...`) and registers its functions when it runs. Each thread runs
//! the text before it first calls one of the functions, so each thread has its own copy of the library's variables.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mlua::{Table, Value};
use parking_lot::RwLock;

use crate::answer::to_one_line;
use crate::interpreter::{Interpreter, error_text};
use crate::releases::Releases;
use crate::script::{ScriptFlags, Shebang};

/// A function of a library.
#[derive(Debug)]
pub struct Function {
    /// The function's name as registered; FCALL ignores case.
    pub name: String,
    /// The description given at registration, or `None` without one.
    pub description: Option<Vec<u8>>,
    /// The flags given at registration; they restrict what the function may do.
    pub flags: ScriptFlags,
    /// Moving average of the run time in nanoseconds; 0 if not measured.
    pub mean_nanos: AtomicU64,
}

/// A loaded library.
#[derive(Debug)]
pub struct Library {
    id: u64,
    /// The name given in the shebang, which is unique among libraries.
    pub name: String,
    /// The complete source text, including the shebang.
    pub code: Box<[u8]>,
    /// The library's functions in registration order.
    pub functions: Vec<Function>,
    /// Whether one of the functions has accessed keys that its call did not declare.
    pub has_undeclared_keys: AtomicBool,
    /// Whether clients can call the library; false after it is deleted or replaced.
    is_live: AtomicBool,
}

impl Library {
    /// Size of the library in bytes, without its compiled form in Lua.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let functions = self.functions.iter().map(|function| function.name.len() + size_of::<Function>());
        size_of::<Self>() + self.name.len() + self.code.len() + functions.sum::<usize>()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }
}

/// The reason why a library was refused, as text for the error reply.
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
    loaded_libraries: RwLock<LoadedLibraries>,
    pub(crate) releases: Releases,
}

#[derive(Debug, Default, Clone)]
struct LoadedLibraries {
    libraries: BTreeMap<String, Arc<Library>>,
    /// The library of each function and the function's index in it, by lower-case name.
    functions: HashMap<String, (Arc<Library>, usize)>,
}

impl LoadedLibraries {
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

/// What FUNCTION RESTORE does with existing libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestorePolicy {
    /// Keep existing libraries; a library with the same name is an error.
    Append,
    /// Keep existing libraries, but replace those with the same name.
    Replace,
    /// Delete all existing libraries first.
    Flush,
}

impl Functions {
    /// Looks up a function case-insensitively. Returns the function's library, and the function's index in that
    /// library.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        let name = std::str::from_utf8(name).ok()?;
        let loaded = self.loaded_libraries.read();
        match loaded.functions.get(name) {
            Some(found) => Some(found.clone()),
            None => loaded.functions.get(&name.to_lowercase()).cloned(),
        }
    }

    /// Adds a library. With `replace`, the new library replaces an existing one with the same name.
    ///
    /// # Errors
    /// A library with this name exists and `replace` is false, or another library has a function with the same name.
    pub fn add(&self, library: Library, replace: bool) -> Result<(), FunctionError> {
        self.add_all(vec![library], if replace { RestorePolicy::Replace } else { RestorePolicy::Append })
    }

    /// Adds either all of the libraries or, if one of them is refused, none.
    ///
    /// # Errors
    /// As for [`Functions::add`].
    pub fn add_all(&self, libraries: Vec<Library>, policy: RestorePolicy) -> Result<(), FunctionError> {
        let mut loaded = self.loaded_libraries.write();
        let mut next =
            if policy == RestorePolicy::Flush { LoadedLibraries::default() } else { loaded.clone() };
        libraries.into_iter().try_for_each(|library| next.add(library, policy == RestorePolicy::Replace))?;
        let before = std::mem::replace(&mut *loaded, next);
        let is_loaded = |library: &Arc<Library>| {
            loaded.libraries.get(&library.name).is_some_and(|now| Arc::ptr_eq(now, library))
        };
        let released: Vec<_> = before.libraries.values().filter(|library| !is_loaded(library)).collect();
        self.record_releases(&released);
        Ok(())
    }

    /// Records releases, so that threads drop the compiled forms of these libraries.
    fn record_releases(&self, libraries: &[&Arc<Library>]) {
        for library in libraries {
            library.is_live.store(false, Ordering::Release);
            self.releases.record_release(library.code.len());
        }
    }

    /// Deletes a library. Returns whether a library with this name existed.
    pub fn remove(&self, name: &[u8]) -> bool {
        let mut loaded = self.loaded_libraries.write();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let Some(library) = loaded.libraries.get(name).cloned() else { return false };
        loaded.remove(&library);
        drop(loaded);
        self.record_releases(&[&library]);
        true
    }

    /// Deletes all libraries.
    pub fn flush(&self) {
        let before = std::mem::take(&mut *self.loaded_libraries.write());
        self.record_releases(&before.libraries.values().collect::<Vec<_>>());
        drop(before);
        self.releases.announce();
    }

    /// All libraries sorted by name.
    #[must_use]
    pub fn libraries(&self) -> Vec<Arc<Library>> {
        self.loaded_libraries.read().libraries.values().cloned().collect()
    }

    /// Memory of all libraries in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.loaded_libraries.read().libraries.values().map(|library| library.bytes()).sum()
    }

    /// The number of functions in all libraries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.loaded_libraries.read().functions.len()
    }

    /// Whether there are no functions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Parses a library's shebang. Returns its name and the text after it.
fn parse_metadata(code: &[u8]) -> Result<(String, &[u8]), FunctionError> {
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
    if !is_valid_name(&name) {
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
    /// Runs a library's text to collect its functions. With `has_time_limit`, the time limit for libraries that clients
    /// load applies.
    ///
    /// # Errors
    /// The text is not a valid library or fails.
    pub fn load_library(&mut self, code: &[u8], has_time_limit: bool) -> Result<Library, FunctionError> {
        static NEXT_LIBRARY_ID: AtomicU64 = AtomicU64::new(1);
        let (name, _) = parse_metadata(code)?;
        // Discard the compiled form: the library may still be refused because of its name, and this thread may never
        // call it.
        let (_, registered) = self.run_library_code(code, has_time_limit)?;
        let functions = functions_from_table(&registered)?;
        if functions.is_empty() {
            return Err(FunctionError::new("No functions registered"));
        }
        Ok(Library {
            id: NEXT_LIBRARY_ID.fetch_add(1, Ordering::Relaxed),
            name,
            code: code.into(),
            functions,
            has_undeclared_keys: AtomicBool::new(false),
            is_live: AtomicBool::new(true),
        })
    }

    /// Runs a library's text unless this thread has already done so.
    ///
    /// # Errors
    /// The text fails on this thread for lack of memory, although it succeeded on another thread.
    pub fn compile_library(&mut self, library: &Arc<Library>) -> Result<(), FunctionError> {
        if self.known_libraries.contains_key(&library.id) {
            return Ok(());
        }
        let (world, registered) = self.run_library_code(&library.code, false)?;
        self.cache_library(library, &world, &registered).map_err(|error| internal_error(&error))
    }

    /// Drops the compiled forms of libraries that are no longer loaded.
    pub(crate) fn drop_stale_libraries(&mut self) {
        let libraries = &self.libraries;
        for (id, _) in self.known_libraries.extract_if(|_, library| !library.is_live()) {
            // Assigning `nil` allocates nothing, so the assignment cannot fail.
            let _ = libraries.raw_set(id, Value::Nil);
        }
    }

    /// Runs a library's text in a global environment of its own. Returns the environment and the registered functions.
    fn run_library_code(
        &mut self,
        code: &[u8],
        has_time_limit: bool,
    ) -> Result<(Table, Table), FunctionError> {
        let (_, body) = parse_metadata(code)?;
        let world: Table =
            self.create_library_environment.call(()).map_err(|error| internal_error(&error))?;
        let environment: Table = world.raw_get("env").map_err(|error| internal_error(&error))?;
        let chunk = self
            .compile_text(body, &environment, "@user_function")
            .map_err(|text| FunctionError::new(format!("Error compiling function: {text}")))?;
        let failed = |text: &str| FunctionError::new(format!("Error registering functions: {text}"));
        match self.run_registration_code(&world, &chunk, has_time_limit).map_err(|text| failed(&text))? {
            (true, Value::Table(registered)) => Ok((world, registered)),
            (false, Value::Table(error)) => Err(failed(&String::from_utf8_lossy(&error_text(&error)))),
            (_, _) => Err(FunctionError::new("Error registering functions")),
        }
    }

    /// Stores a library's functions by name, and its globals.
    fn cache_library(
        &mut self,
        library: &Arc<Library>,
        environment: &Table,
        registered: &Table,
    ) -> mlua::Result<()> {
        let by_name = self.empty_table()?;
        for entry in registered.sequence_values::<Table>() {
            let entry = entry?;
            by_name.raw_set(entry.raw_get::<Value>("name")?, entry.raw_get::<Value>("callback")?)?;
        }
        environment.raw_set("functions", by_name)?;
        self.libraries.raw_set(library.id, environment)?;
        self.known_libraries.insert(library.id, library.clone());
        Ok(())
    }
}

fn internal_error(error: &mlua::Error) -> FunctionError {
    let text = to_one_line(error.to_string().lines().next().unwrap_or_default().as_bytes(), true);
    FunctionError::new(String::from_utf8_lossy(&text))
}

/// Converts the table of registered functions to [`Function`] values.
fn functions_from_table(registered: &Table) -> Result<Vec<Function>, FunctionError> {
    let mut functions: Vec<Function> = Vec::new();
    let mut names = HashSet::new();
    for entry in registered.sequence_values::<Table>() {
        let entry = entry.map_err(|error| internal_error(&error))?;
        let name: mlua::LuaString = entry.raw_get("name").map_err(|error| internal_error(&error))?;
        let name = name.as_bytes();
        if !is_valid_name(&name) {
            return Err(FunctionError::new(
                "Function names can only contain letters, numbers, or underscores(_) and must be at least one \
                 character long",
            ));
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        if !names.insert(name.clone()) {
            return Err(FunctionError::new("Function already exists in the library"));
        }
        functions.push(function_from_entry(name, &entry).map_err(|error| internal_error(&error))?);
    }
    Ok(functions)
}

/// Converts the registration entry of one function.
fn function_from_entry(name: String, entry: &Table) -> mlua::Result<Function> {
    let mut flags = ScriptFlags { declared: true, ..ScriptFlags::default() };
    for flag in entry.raw_get::<Table>("flags")?.sequence_values::<mlua::LuaString>() {
        flags.set_flag(&flag?.as_bytes());
    }
    let description: Option<mlua::LuaString> = entry.raw_get("description")?;
    let description = description.map(|text| text.as_bytes().to_vec());
    Ok(Function { name, description, flags, mean_nanos: AtomicU64::new(0) })
}

/// Whether `name` is valid for a library or function: letters, digits and underscores.
fn is_valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}
