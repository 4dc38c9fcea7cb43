// A module that gives a name where a backend is meant.
export default () => "ring";
