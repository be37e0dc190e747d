//! The syntax tree of a PTX module.
//!
//! Names are as written; nothing is resolved. Every node that a later step may reject carries its position.

pub use super::diagnostic::Position;

/// An identifier and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The text as written, including `%`.
    pub text: String,
    /// Its position.
    pub at: Position,
}

/// One PTX text.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// `.target sm_NN`: NN.
    pub sm: u32,
    /// Whether the target is architecture-specific (`sm_90a`) or family-specific (`sm_100f`).
    pub sm_suffix: Option<char>,
    /// Module-scope variables and functions, in order.
    pub items: Vec<Item>,
}

/// An item at module scope.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A variable in `.global`, `.const` or `.shared` space.
    Variable(Variable),
    /// An `.entry` or `.func`, defined or declared.
    Function(Function),
}

/// The visibility of a symbol (PTX ISA 11.6, "Linking Directives").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Visible in this module only.
    Internal,
    /// `.visible`: defined here, visible in all modules.
    Visible,
    /// `.weak`: visible in all modules; a `.visible` definition replaces it.
    Weak,
    /// `.extern`: defined in another module.
    Extern,
    /// `.common`: a tentative definition; the linker keeps one.
    Common,
}

/// State spaces a variable can be declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Registers.
    Reg,
    /// Constant bank.
    Const,
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters, of kernels and of calls.
    Param,
}

/// A declared variable, register or parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name; with `count`, the stem of a numbered family.
    pub name: Name,
    /// `%r<5>`: the number of registers `%r0` to `%r4`.
    pub count: Option<u32>,
    /// Linkage; [`Linkage::Internal`] inside functions.
    pub linkage: Linkage,
    /// State space.
    pub space: Space,
    /// `.align` in bytes; 0 when not written.
    pub align: u32,
    /// Element type as written, without the dot (`b32`, `f16x2`, `pred`).
    pub ty: Name,
    /// Elements of a vector: 1, 2 or 4.
    pub vector: u32,
    /// Array dimensions, outermost first; `None` for `[]`. Empty for a scalar.
    pub dimensions: Vec<Option<u64>>,
    /// Initial value.
    pub init: Option<Init>,
}

/// The initial value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// A number.
    Value(Constant, Position),
    /// The address of another variable or function plus an offset; `generic` wraps it in `generic()`.
    Address {
        /// The variable or function.
        symbol: Name,
        /// Bytes added.
        offset: i64,
        /// `generic(symbol)`: as a generic address.
        generic: bool,
    },
    /// `{ ... }`.
    List(Vec<Init>, Position),
}

/// The value of a constant expression (PTX ISA 4.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    /// 64 bits, `.s64`.
    Signed(i64),
    /// 64 bits, `.u64`.
    Unsigned(u64),
    /// `0f...`: the bits of an f32.
    F32(u32),
    /// Decimal or `0d...`.
    F64(f64),
}

/// `.entry` or `.func`.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: Name,
    /// Linkage.
    pub linkage: Linkage,
    /// Whether it is a kernel (`.entry`) or a device function (`.func`).
    pub is_entry: bool,
    /// Returned values; usually at most one.
    pub returns: Vec<Variable>,
    /// Parameters, in order.
    pub params: Vec<Variable>,
    /// `.maxntid`, `.reqntid` and similar directives.
    pub hints: Vec<Hint>,
    /// `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    /// Position of the closing brace.
    pub end: Position,
}

/// A performance-tuning or linking directive between a function's head and body.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// The directive without its dot.
    pub name: Name,
    /// The values.
    pub values: Vec<u64>,
}

/// A statement in a function's body.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `name:`.
    Label(Name),
    /// `name: .branchtargets a, b;`.
    BranchTargets {
        /// The list's name.
        name: Name,
        /// Labels, in order.
        targets: Vec<Name>,
    },
    /// `name: .callprototype (returns) _ (params);`, the signature of calls through a pointer.
    Prototype {
        /// The prototype's name.
        name: Name,
        /// Returned values.
        returns: Vec<Variable>,
        /// Parameters, in order.
        params: Vec<Variable>,
    },
    /// `name: .calltargets f, g;`, the functions that a call through a pointer may reach.
    CallTargets {
        /// The list's name.
        name: Name,
        /// Functions; all have the same signature.
        targets: Vec<Name>,
    },
    /// A declaration.
    Variable(Variable),
    /// `{ ... }`, a scope of registers, variables and labels.
    Block(Vec<Statement>),
    /// An instruction. Boxed because it is much larger than the others.
    Instruction(Box<Instruction>),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// The opcode.
    pub opcode: Name,
    /// The modifiers after it, without dots, in order.
    pub modifiers: Vec<Name>,
    /// Operands, in order.
    pub operands: Vec<Operand>,
}

/// The predicate of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// A predicate register.
    pub predicate: Name,
    /// `@!p`.
    pub negated: bool,
}

/// An operand and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Its first character.
    pub at: Position,
    /// Its content.
    pub kind: OperandKind,
}

/// The kinds of operands.
#[derive(Clone, Debug, PartialEq)]
pub enum OperandKind {
    /// `_`: discards a result.
    Sink,
    /// A register, variable, label, function or special register, and a byte offset to its address (`table+8`).
    Name {
        /// As written.
        name: String,
        /// Component of a vector or special register: `x`, `y`, `z` or `w`.
        component: Option<char>,
        /// Bytes added to an address.
        offset: i64,
    },
    /// `!p`.
    Not(String),
    /// A constant.
    Constant(Constant),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base+offset]`.
    Address {
        /// A register or variable; `None` for an immediate address.
        base: Option<String>,
        /// Bytes.
        offset: i64,
    },
    /// `d|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)`, in call sequences.
    List(Vec<Operand>),
}
