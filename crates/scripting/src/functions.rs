//! Libraries of functions (FUNCTION LOAD), and what a thread has compiled of them.
//!
//! A library is its text, which says of itself what it is called (`#!lua name=...`) and registers its functions when
//! it is run. Each thread runs the text by itself before it first calls one of the functions: what a library keeps in
//! variables of its own is each thread's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mlua::{Function as LuaFunction, Table, Value};
use parking_lot::RwLock;

use crate::answer::one_line;
use crate::interpreter::Interpreter;
use crate::script::{ScriptFlags, Shebang};

/// One function of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// What clients call it, in any case.
    pub name: String,
    /// What the library says of it.
    pub description: Option<Vec<u8>>,
    /// What it says it does.
    pub flags: ScriptFlags,
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
    /// One of them has touched keys that its caller had not named.
    pub roams: AtomicBool,
}

impl Library {
    /// What it takes, without what Lua made of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let functions = self.functions.iter().map(|function| function.name.len() + size_of::<Function>());
        size_of::<Self>() + self.name.len() + self.code.len() + functions.sum::<usize>()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
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
}

#[derive(Debug, Default, Clone)]
struct Loaded {
    libraries: BTreeMap<String, Arc<Library>>,
    /// By their names in lower case: the library, and the place in it.
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

/// What FUNCTION RESTORE does with the libraries that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore {
    /// They stay; none may come again.
    Append,
    /// Those that come again are replaced.
    Replace,
    /// They go.
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
    /// There is one of its name, or a function of another with a name of its.
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
        *loaded = next;
        Ok(())
    }

    /// Removes a library; says whether it was there.
    pub fn remove(&self, name: &[u8]) -> bool {
        let mut loaded = self.loaded.write();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let Some(library) = loaded.libraries.get(name).cloned() else { return false };
        loaded.remove(&library);
        true
    }

    /// Removes all.
    pub fn flush(&self) {
        *self.loaded.write() = Loaded::default();
    }

    /// The libraries in the order of their names.
    #[must_use]
    pub fn libraries(&self) -> Vec<Arc<Library>> {
        self.loaded.read().libraries.values().cloned().collect()
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

    fn has(&self, library: u64) -> bool {
        self.loaded.read().libraries.values().any(|known| known.id == library)
    }
}

/// A library as one thread has compiled it.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) environment: Table,
    pub(crate) functions: HashMap<String, LuaFunction>,
}

/// The name that a library's first line gives it, and where its text begins.
fn metadata(code: &[u8]) -> Result<(String, &[u8]), FunctionError> {
    let invalid = || FunctionError::new("Invalid library metadata");
    let shebang = Shebang::parse(code).map_err(|_| invalid())?;
    let Some(shebang) = shebang else { return Err(FunctionError::new("Missing library metadata")) };
    let mut name = None;
    for option in shebang.options() {
        let Some(given) = option.strip_prefix(b"name=") else {
            let shown = String::from_utf8_lossy(option);
            return Err(FunctionError::new(format!("Invalid metadata value given: {shown}")));
        };
        if name.replace(given).is_some() {
            return Err(FunctionError::new("Invalid metadata value, name argument was given multiple times"));
        }
    }
    let Some(name) = name else { return Err(FunctionError::new("Library name was not given")) };
    if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return Err(FunctionError::new(
            "Library names can only contain letters, numbers, or underscores(_) and must be at least one character \
             long",
        ));
    }
    if !shebang.engine[2..].eq_ignore_ascii_case(b"lua") {
        let engine = String::from_utf8_lossy(&shebang.engine[2..]);
        return Err(FunctionError::new(format!("Engine '{engine}' not found")));
    }
    Ok((String::from_utf8_lossy(name).into_owned(), shebang.body))
}

impl Interpreter {
    /// Runs a library's text to see what it is.
    ///
    /// # Errors
    /// It is none, or does not run.
    pub fn load_library(&mut self, code: &[u8]) -> Result<Library, FunctionError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (name, _) = metadata(code)?;
        let (functions, compiled) = self.run_library(code)?;
        if functions.is_empty() {
            return Err(FunctionError::new("No functions registered"));
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.libraries.insert(id, compiled);
        Ok(Library { id, name, code: code.into(), functions, roams: AtomicBool::new(false) })
    }

    /// Runs a library's text unless this thread has done that.
    ///
    /// # Errors
    /// It does not run, though it did elsewhere: for want of memory.
    pub fn compile_library(&mut self, library: &Library, known: &Functions) -> Result<(), FunctionError> {
        if self.libraries.contains_key(&library.id) {
            return Ok(());
        }
        let (_, compiled) = self.run_library(&library.code)?;
        self.libraries.retain(|id, _| known.has(*id));
        self.libraries.insert(library.id, compiled);
        Ok(())
    }

    fn run_library(&self, code: &[u8]) -> Result<(Vec<Function>, Compiled), FunctionError> {
        let (_, body) = metadata(code)?;
        let (environment, registered) = self.register(body)?;
        let functions = registered.iter().map(|(function, _)| function.clone()).collect();
        let compiled = registered.into_iter().map(|(function, callback)| (function.name, callback)).collect();
        Ok((functions, Compiled { environment, functions: compiled }))
    }

    fn register(&self, body: &[u8]) -> Result<(Table, Vec<(Function, LuaFunction)>), FunctionError> {
        let internal = |error: mlua::Error| {
            FunctionError::new(one_line(
                error.to_string().lines().next().unwrap_or_default().as_bytes(),
                true,
            ))
        };
        let world: Table = self.library_world.call(()).map_err(internal)?;
        let environment: Table = world.raw_get("env").map_err(internal)?;
        let chunk = self
            .compile_text(body, &environment, "@user_function")
            .map_err(|text| FunctionError::new(format!("Error compiling function: {text}")))?;
        let (ok, result): (bool, Value) = self.run_loading(&world, &chunk).map_err(internal)?;
        let Value::Table(table) = result else {
            return Err(FunctionError::new("Error registering functions"));
        };
        if !ok {
            let text = match table.raw_get("err") {
                Ok(Value::String(text)) => one_line(&text.as_bytes(), true),
                _ => "ERR unknown error".to_owned(),
            };
            return Err(FunctionError::new(format!("Error registering functions: {text}")));
        }
        let each = table.sequence_values::<Table>().map(|entry| describe(&entry?));
        let registered = each.collect::<mlua::Result<_>>().map_err(internal)?;
        Ok((environment, registered))
    }
}

/// What the prelude has noted of one function.
fn describe(entry: &Table) -> mlua::Result<(Function, LuaFunction)> {
    let mut flags = ScriptFlags { declared: true, ..ScriptFlags::default() };
    for flag in entry.raw_get::<Table>("flags")?.sequence_values::<mlua::LuaString>() {
        flags.set(&flag?.as_bytes());
    }
    let description: Option<mlua::LuaString> = entry.raw_get("description")?;
    let function = Function {
        name: entry.raw_get("name")?,
        description: description.map(|text| text.as_bytes().to_vec()),
        flags,
    };
    Ok((function, entry.raw_get("callback")?))
}
